// The flags that say which files make the model: its folder, its tokenizer, its chat template.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/snapshot.h"
#include "tools/command_line/command_line.h"

namespace loramux {

struct RuntimeFlags;

void AddModelFlags(CommandLine& line, RuntimeFlags& flags);

// The model of `flags` with folders in place of names as ORG/NAME: from the cache, or downloaded with a progress bar.
// Errors name the model.
Status FetchModel(RuntimeFlags& flags);

// The folder of the cache, which need not exist. // `given`: --download-dir; empty: Hugging Face's.
std::filesystem::path HubCacheFolder(const std::string& given);

// `hub` with the token of `hf auth login` where no flag gives one.
HubClientOptions WithToken(HubClientOptions hub);

// A folder for `text`: itself if it exists, or that of ORG/NAME[@REVISION]. Errors: there is neither.
Result<std::string> FolderOf(const std::string& text, const SnapshotOptions& hub);

// Refuses a --dtype that is not the type of the weights: they keep the type of their file. Reads headers only.
Status CheckModelDType(const RuntimeFlags& flags);

}  // namespace loramux
