#include "formats/embedding_config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/message.h"
#include "formats/json_fields.h"
#include "formats/model_files.h"

namespace loramux {
namespace {

constexpr const char* kModulesFile = "modules.json";
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxModules = 16;
constexpr std::string_view kModeKey = "pooling_mode";
constexpr std::string_view kModePrefix = "pooling_mode_";
constexpr std::string_view kServedModes =
    "pooling by mean (pooling_mode_mean_tokens) or last token "
    "(pooling_mode_lasttoken)";

// A mode's names: as a flag, as newer versions of sentence-transformers write it, and as --pooling takes it.
struct Mode {
  std::string_view flag, name;
  Pooling pooling;
};
constexpr std::array<Mode, 2> kModes = {
    {{"mean_tokens", "mean", Pooling::kMean}, {"lasttoken", "last", Pooling::kLast}}};

// The last part of "sentence_transformers.models.Pooling".
std::string_view ClassName(std::string_view type) { return type.substr(type.find_last_of('.') + 1); }

// One folder beside modules.json, and nothing that leads elsewhere.
bool IsPlainName(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), plain);
}

Status AddModule(const nlohmann::json& module, const std::string& label, EmbeddingModules& modules) {
  if (!module.is_object())
    return InvalidArgument(label + ": expected modules that are objects, found " + Describe(module));
  const JsonFields fields(module, label + ": ");
  ASSIGN_OR_RETURN(const std::optional<std::string> type, fields.String("type"));
  ASSIGN_OR_RETURN(const std::optional<std::string> path, fields.String("path"));
  if (!type) return fields.Missing("type", "the class of a module");
  const std::string_view name = ClassName(*type);
  if (name == "Transformer") return Ok{};
  if (name == "Normalize") {
    modules.normalize = true;
    return Ok{};
  }
  if (name != "Pooling" || !modules.pooling_folder.empty()) {
    return Unsupported(label + ": expected the modules Transformer, Pooling and Normalize, each once, found " +
                       Quote(*type));
  }
  if (!path || !IsPlainName(*path)) return fields.Bad("path", "the name of a folder beside it");
  modules.pooling_folder = *path;
  return Ok{};
}

// The mode that one entry of the file switches on; empty: none.
std::string_view SwitchedOn(const std::string& key, const nlohmann::json& value) {
  if (key == kModeKey && value.is_string()) return value.get_ref<const std::string&>();
  if (!key.starts_with(kModePrefix) || !value.is_boolean() || !value.get<bool>()) return {};
  return std::string_view(key).substr(kModePrefix.size());
}

}  // namespace

Result<EmbeddingModules> ParseEmbeddingModules(std::string_view json, const std::string& label) {
  if (const auto problem = JsonTextProblem(json)) return InvalidArgument(label + ": not valid JSON: found " + *problem);
  const nlohmann::json list = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (list.is_discarded()) return InvalidArgument(label + ": not valid JSON");
  if (!list.is_array() || list.size() > kMaxModules) {
    return InvalidArgument(label + ": expected an array of at most " + std::to_string(kMaxModules) +
                           " modules, found " + Describe(list));
  }
  EmbeddingModules modules;
  for (const nlohmann::json& module : list) RETURN_IF_ERROR(AddModule(module, label, modules));
  if (modules.pooling_folder.empty())
    return Unsupported(label + ": expected a module of the class Pooling, found none");
  return modules;
}

Result<Pooling> ParsePoolingConfig(std::string_view json, const std::string& label) {
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(json, label));
  std::optional<Pooling> pooling;
  for (const auto& [key, value] : object.items()) {
    const std::string_view on = SwitchedOn(key, value);
    if (on.empty()) continue;
    const auto mode = std::find_if(kModes.begin(), kModes.end(),
                                   [on](const Mode& known) { return known.flag == on || known.name == on; });
    if (mode == kModes.end() || (pooling && *pooling != mode->pooling)) {
      return Unsupported(label + ": expected " + std::string(kServedModes) + ", found " +
                         (pooling ? "several modes" : Quote(on)));
    }
    pooling = mode->pooling;
  }
  if (!pooling) return Unsupported(label + ": expected " + std::string(kServedModes) + ", found neither");
  return *pooling;
}

Result<std::optional<EmbeddingConfig>> LoadEmbeddingConfig(const std::filesystem::path& directory,
                                                           const ReadConfigFile& read) {
  const auto text = read(directory / kModulesFile);
  if (!text.ok() && text.error().code == ErrorCode::kNotFound) return std::optional<EmbeddingConfig>();
  if (!text.ok()) return Unsupported(std::string(kModulesFile) + ": the server cannot read it");
  ASSIGN_OR_RETURN(const EmbeddingModules modules, ParseEmbeddingModules(*text, kModulesFile));
  const std::string name = modules.pooling_folder + "/config.json";
  const auto pooling_text = read(directory / name);
  if (!pooling_text.ok()) {
    return Unsupported(name + (pooling_text.error().code == ErrorCode::kNotFound
                                   ? ": expected this file beside modules.json, found none"
                                   : ": the server cannot read it"));
  }
  ASSIGN_OR_RETURN(const Pooling pooling, ParsePoolingConfig(*pooling_text, name));
  return std::optional(EmbeddingConfig{pooling, modules.normalize});
}

Result<std::optional<EmbeddingConfig>> LoadEmbeddingConfig(const std::filesystem::path& directory) {
  return LoadEmbeddingConfig(directory,
                             [](const std::filesystem::path& path) { return ReadModelFile(path, kMaxFileBytes); });
}

std::string_view PoolingName(Pooling pooling) {
  return std::find_if(kModes.begin(), kModes.end(), [&](const Mode& mode) { return mode.pooling == pooling; })->name;
}

std::optional<Pooling> FindPooling(std::string_view name) {
  const auto mode = std::find_if(kModes.begin(), kModes.end(), [&](const Mode& known) { return known.name == name; });
  return mode == kModes.end() ? std::nullopt : std::optional(mode->pooling);
}

}  // namespace loramux
