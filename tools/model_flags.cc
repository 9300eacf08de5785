#include "tools/model_flags.h"

#include <filesystem>
#include <map>

#include "formats/dtype.h"
#include "formats/file.h"
#include "formats/model_files.h"
#include "formats/safetensors.h"
#include "hub/repo_name.h"
#include "report/progress_bar.h"
#include "tools/command_line/environment.h"
#include "tools/runtime_flags.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

// Hugging Face's own folder: of its cache, and of the token that `hf auth login` keeps.
fs::path HuggingFaceHome() {
  if (const auto home = EnvironmentValue("HF_HOME")) return *home;
  if (const auto caches = EnvironmentValue("XDG_CACHE_HOME")) return fs::path(*caches) / "huggingface";
  return fs::path(EnvironmentValue("HOME").value_or(".")) / ".cache" / "huggingface";
}

void AddHubFlags(CommandLine& line, RuntimeFlags& flags) {
  const std::string hub = "Models by name";
  line.Add({.names = "--revision",
            .target = &flags.revision,
            .unit = "REVISION",
            .group = hub,
            .help = "Branch, tag or commit of a model that is given as ORG/NAME",
            .default_text = "main"});
  line.Add({.names = "--download-dir",
            .target = &flags.hub.cache,
            .unit = "DIR",
            .group = hub,
            .help = "Cache of models, as Hugging Face's libraries keep it",
            .default_text = "HF_HOME/hub, or ~/.cache/huggingface/hub",
            .environment = {"HF_HUB_CACHE"}});
  line.Add({.names = "--offline",
            .target = &flags.hub.offline,
            .group = hub,
            .help = "Take models from the cache, and download nothing",
            .common = true,
            .environment = {"HF_HUB_OFFLINE"}});
  line.Add({.names = "--hf-token",
            .target = &flags.hub.hub.token,
            .unit = "TOKEN",
            .group = hub,
            .help = "Token for models that are not public; better in the environment (HF_TOKEN)",
            .default_text = "that of `hf auth login`, or none",
            .secret = true,
            .environment = {"HF_TOKEN"}});
  line.Add({.names = "--hf-endpoint",
            .target = &flags.hub.hub.endpoint,
            .unit = "URL",
            .group = hub,
            .help = "Hub to download models from",
            .environment = {"HF_ENDPOINT"}});
}

}  // namespace

void AddModelFlags(CommandLine& line, RuntimeFlags& flags) {
  line.Add({.names = "model,--model",
            .target = &flags.model_dir,
            .unit = "MODEL",
            .help = "Directory of a Hugging Face model, or ORG/NAME, which is downloaded. It holds config.json, "
                    "*.safetensors and tokenizer.json. ORG/NAME@REVISION chooses another revision than main. Or a "
                    "GGUF file: PATH.gguf",
            .required = true,
            .common = true});
  line.Add({.names = "--tokenizer",
            .target = &flags.tokenizer,
            .unit = "DIR",
            .help = "Directory or ORG/NAME of the tokenizer and its chat template",
            .default_text = "the model's",
            .common = true});
  line.Add({.names = "--chat-template",
            .target = &flags.chat_templates,
            .unit = "FILE",
            .help = "Jinja file of the chat template, or the template itself, for all models; NAME=FILE is for one. "
                    "Repeatable",
            .default_text = "an adapter's own, else the tokenizer's",
            .one_value_each = true,
            .common = true});
  line.Add({.names = "--chat-template-content-format",
            .target = &flags.content_format,
            .unit = "FORMAT",
            .help = "Form in which the chat template gets the content of messages: as texts (string), as lists of "
                    "parts (openai), or as it reads it for each role (auto)",
            .choices = {"auto", "string", "openai"}});
  line.Add({.names = "--dtype",
            .target = &flags.dtype,
            .unit = "DTYPE",
            .help = "Type of the weights; they keep the type of their file, so another one is refused",
            .choices = {"auto", "bf16", "bfloat16", "f16", "float16", "half", "f32", "float32", "float"}});
  AddHubFlags(line, flags);
}

fs::path HubCacheFolder(const std::string& given) {
  return given.empty() ? HuggingFaceHome() / "hub" : fs::path(given);
}

HubClientOptions WithToken(HubClientOptions hub) {
  if (!hub.token.empty()) return hub;
  const auto text = ReadTextFile(HuggingFaceHome() / "token", 4096);
  if (text.ok()) hub.token = text->substr(0, text->find_last_not_of(" \r\n\t") + 1);  // else not logged in
  return hub;
}

Result<std::string> FolderOf(const std::string& text, const SnapshotOptions& hub) {
  std::error_code ignored;
  if (fs::exists(text, ignored)) return text;
  const std::optional<RepoName> repo = ParseRepoName(text);
  if (!repo) return NotFound("'" + text + "': expected a folder, or a model as ORG/NAME, found neither");
  SnapshotOptions options = hub;
  options.cache = HubCacheFolder(hub.cache).string();
  options.hub = WithToken(hub.hub);
  ProgressBar bar("downloading " + repo->full(), "MiB", 1 << 20);
  auto folder =
      FetchSnapshot(*repo, options, [&](std::int64_t bytes, std::int64_t total) { bar.Update(bytes, total); });
  bar.Finish();
  if (!folder.ok()) return folder.error();
  return folder->string();
}

Status FetchModel(RuntimeFlags& flags) {
  std::string model = flags.model_dir;
  std::error_code ignored;
  if (!flags.revision.empty() && !fs::exists(model, ignored)) model += "@" + flags.revision;
  ASSIGN_OR_RETURN(std::string folder, FolderOf(model, flags.hub));
  if (folder != flags.model_dir) flags.model_name = flags.model_dir.substr(0, flags.model_dir.find('@'));
  flags.model_dir = std::move(folder);
  if (flags.tokenizer.empty()) return Ok{};
  ASSIGN_OR_RETURN(flags.tokenizer, FolderOf(flags.tokenizer, flags.hub));
  return Ok{};
}

Status CheckModelDType(const RuntimeFlags& flags) {
  static const std::map<std::string, DType> kNames = {
      {"bf16", DType::kBF16}, {"bfloat16", DType::kBF16}, {"f16", DType::kF16},     {"float16", DType::kF16},
      {"half", DType::kF16},  {"f32", DType::kF32},       {"float32", DType::kF32}, {"float", DType::kF32}};
  const auto asked = kNames.find(flags.dtype);
  if (asked == kNames.end()) return Ok{};  // auto
  if (IsGgufModel(flags.model_dir)) {
    return Unsupported("--dtype " + flags.dtype + ": the weights of a GGUF file keep their types; leave --dtype out",
                       "--dtype");
  }
  ASSIGN_OR_RETURN(const TensorFile tensors, TensorFile::OpenModelDirectory(flags.model_dir));
  const StoredTensor* embedding = tensors.Find("model.embed_tokens.weight");
  if (embedding == nullptr || embedding->dtype == asked->second) return Ok{};
  return Unsupported("--dtype " + flags.dtype + ": the weights in " + flags.model_dir + " are " +
                         DTypeName(embedding->dtype) +
                         " and keep this type; leave --dtype out, or convert them with --weights " + flags.dtype,
                     "--dtype");
}

}  // namespace loramux
