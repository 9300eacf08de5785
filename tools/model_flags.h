// The flags that say which files make the model: its folder, its tokenizer, its chat template.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/hub_client.h"
#include "tools/command_line/command_line.h"

namespace loramux {

// Where models come from that are named and not given as a folder.
struct HubFlags {
  std::string cache;  // as Hugging Face's libraries keep it; empty: theirs
  std::string endpoint = "https://huggingface.co";
  std::string token;     // secret
  std::string revision;  // revision of the base model; empty: what its name says, or main
  bool offline = false;
};

struct ModelFlags {
  std::string model_dir;  // folder of the base model
  std::string tokenizer;  // directory of the tokenizer; empty: the model's
  // Each a file or the template itself, for all models, or NAME=FILE for one; empty: the tokenizer's, and adapters'
  // own.
  std::vector<std::string> chat_templates;
  // Form of the content of messages: "auto", "string" or "openai".
  std::string content_format = "auto";
  std::string dtype = "auto";
  HubFlags hub;
  std::string model_name;  // the model as it was asked for, where model_dir became a folder of the cache
  // Where the tokenizer and the chat template are.
  const std::string& text_directory() const { return tokenizer.empty() ? model_dir : tokenizer; }
};

void AddModelFlags(CommandLine& line, ModelFlags& flags);

// The model of `flags` with folders in place of names as ORG/NAME: from the cache, or downloaded with a progress bar.
// Errors name the model.
Status FetchModel(ModelFlags& flags);

// The folder of the cache, which need not exist.
std::filesystem::path HubCacheFolder(const HubFlags& flags);

// What downloads from the hub that the flags name; with the token of `hf auth login` where no flag gives one.
HubClientOptions HubOptionsOf(const HubFlags& flags);

// A folder for `text`: itself if it exists, or that of ORG/NAME[@REVISION]. Errors: there is neither.
Result<std::string> FolderOf(const std::string& text, const HubFlags& hub);

// Refuses a --dtype that is not the type of the weights: they keep the type of their file. Reads headers only.
Status CheckModelDType(const ModelFlags& flags);

}  // namespace loramux
