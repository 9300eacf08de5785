#include "hub/repo_files.h"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

#include "hub/repo_name.h"

namespace loramux {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxFiles = 4096;
constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 42;  // 4 TiB

bool IsHex(const std::string& text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool IsGguf(std::string_view name) { return name.ends_with(".gguf"); }

bool IsNeeded(std::string_view name) {
  if (IsPoolingConfig(name)) return true;
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < 0x7f && c != '/'; });
  if (!plain || name.empty() || name.size() > 200 || name.front() == '.') return false;
  if (name.starts_with("consolidated") || name.starts_with("pytorch_model")) return false;  // the weights once more
  return name.ends_with(".safetensors") || name.ends_with(".json") || name.ends_with(".jinja") || IsGguf(name);
}

std::string Text(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::optional<std::int64_t> Bytes(const json& object) {
  const auto found = object.find("size");
  if (found == object.end() || !found->is_number_integer()) return std::nullopt;
  const std::int64_t bytes = found->get<std::int64_t>();
  return bytes >= 0 && bytes <= kMaxFileBytes ? std::optional(bytes) : std::nullopt;
}

Result<RepoFile> ParseFile(const json& entry) {
  RepoFile file{.name = Text(entry, "rfilename")};
  const auto lfs = entry.find("lfs");
  const bool large = lfs != entry.end() && lfs->is_object();
  const std::optional<std::int64_t> bytes = Bytes(large ? *lfs : entry);
  file.digest = large ? Text(*lfs, "sha256") : Text(entry, "blobId");
  if (!bytes || !IsHex(file.digest, large ? 64 : 40)) {
    return InvalidArgument("the hub's list of files: expected size and digest of " + file.name +
                           ", found neither or one");
  }
  file.bytes = *bytes;
  return file;
}

}  // namespace

bool IsPoolingConfig(std::string_view name) {
  constexpr std::string_view kEnd = "_Pooling/config.json";
  return name.size() == kEnd.size() + 1 && name.front() >= '0' && name.front() <= '9' && name.ends_with(kEnd);
}

std::int64_t RepoFiles::Bytes() const {
  std::int64_t bytes = 0;
  for (const RepoFile& file : files) bytes += file.bytes;
  return bytes;
}

Result<RepoFiles> ParseRepoFiles(std::string_view text) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return InvalidArgument("the hub's answer: expected a JSON object, found something else");
  RepoFiles result{.commit = Text(object, "sha")};
  if (!IsCommit(result.commit)) return InvalidArgument("the hub's answer: expected the id of a commit in `sha`");
  const auto list = object.find("siblings");
  if (list == object.end() || !list->is_array() || list->size() > kMaxFiles) {
    return InvalidArgument("the hub's answer: expected `siblings`, a list of at most 4096 files");
  }
  for (const json& entry : *list) {
    if (!entry.is_object() || !IsNeeded(Text(entry, "rfilename"))) continue;
    ASSIGN_OR_RETURN(RepoFile file, ParseFile(entry));
    (IsGguf(file.name) ? result.gguf : result.files).push_back(std::move(file));
  }
  std::ranges::sort(result.files, {}, &RepoFile::name);
  std::ranges::sort(result.gguf, {}, &RepoFile::name);
  const bool weights = std::any_of(result.files.begin(), result.files.end(),
                                   [](const RepoFile& file) { return file.name.ends_with(".safetensors"); });
  if (!weights && result.gguf.empty()) {
    return Unsupported("the repository has no *.safetensors; other formats of weights are not read");
  }
  return result;
}

}  // namespace loramux
