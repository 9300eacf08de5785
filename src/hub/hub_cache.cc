#include "hub/hub_cache.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/adapter_files.h"
#include "base/text_file.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);  // a link to a blob that is not there does not exist
}

// The commit in a file of refs/, or an empty string.
std::string ReadRef(const fs::path& path) {
  std::ifstream file(path);
  std::string commit;
  file >> std::ws;
  for (char c; commit.size() <= 40 && file.get(c) && c != '\n';) commit += c;
  return IsCommit(commit) ? commit : std::string();
}

// Whether every file that an index of weights names is there.
bool HasAllParts(const fs::path& folder, const fs::path& index) {
  constexpr std::uintmax_t kMaxBytes = 64 << 20;
  std::error_code error;
  if (fs::file_size(index, error) > kMaxBytes || error) return false;
  std::ifstream file(index);
  const json object = json::parse(file, nullptr, /*allow_exceptions=*/false);
  const auto map = object.is_object() ? object.find("weight_map") : object.end();
  if (!object.is_object() || map == object.end() || !map->is_object()) return false;
  return std::all_of(map->begin(), map->end(), [&](const json& part) {
    return part.is_string() && Exists(folder / fs::path(part.get<std::string>()).filename());
  });
}

Status MakeFolder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return IoError("cannot make the folder " + folder.string() + ": " + error.message());
  return Ok{};
}

// Puts a link in place of whatever has its name, at one instant.
Status Link(const fs::path& target, const fs::path& link) {
  std::error_code error;
  if (fs::read_symlink(link, error) == target && !error) return Ok{};
  const fs::path fresh = link.string() + ".new";
  fs::remove(fresh, error);
  fs::create_symlink(target, fresh, error);
  if (!error) fs::rename(fresh, link, error);
  if (error) return IoError("cannot link " + link.string() + ": " + error.message());
  return Ok{};
}

}  // namespace

bool IsCompleteSnapshot(const fs::path& folder) {
  if (Exists(folder / "adapter_config.json")) {
    return std::any_of(kAdapterTensorFiles.begin(), kAdapterTensorFiles.end(),
                       [&](const char* name) { return Exists(folder / name); });
  }
  if (!Exists(folder / "config.json")) return false;
  const fs::path index = folder / "model.safetensors.index.json";
  return Exists(folder / "model.safetensors") || (Exists(index) && HasAllParts(folder, index));
}

fs::path HubCache::FolderOf(const RepoName& repo) const {
  return root_ / ("models--" + repo.organisation + "--" + repo.name);
}

std::optional<fs::path> HubCache::Find(const RepoName& repo) const {
  std::string commit = ReadRef(FolderOf(repo) / "refs" / repo.revision);
  if (commit.empty() && IsCommit(repo.revision)) commit = repo.revision;
  if (commit.empty()) return std::nullopt;
  fs::path folder = FolderOf(repo) / "snapshots" / commit;
  return IsCompleteSnapshot(folder) ? std::optional(std::move(folder)) : std::nullopt;
}

Result<fs::path> HubCache::BlobPath(const RepoName& repo, const RepoFile& file) const {
  const fs::path folder = FolderOf(repo) / "blobs";
  RETURN_IF_ERROR(MakeFolder(folder));
  return folder / file.digest;
}

Result<fs::path> HubCache::Publish(const RepoName& repo, const RepoFiles& files) const {
  const fs::path folder = FolderOf(repo) / "snapshots" / files.commit;
  RETURN_IF_ERROR(MakeFolder(folder));
  for (const RepoFile& file : files.files) {
    const fs::path link = folder / file.name;
    RETURN_IF_ERROR(MakeFolder(link.parent_path()));
    const fs::path up = link.parent_path() == folder ? "../../blobs" : "../../../blobs";
    RETURN_IF_ERROR(Link(up / file.digest, link));
  }
  if (!IsCommit(repo.revision)) {
    RETURN_IF_ERROR(MakeFolder(FolderOf(repo) / "refs"));
    RETURN_IF_ERROR(WriteTextFile(FolderOf(repo) / "refs" / repo.revision, files.commit));
  }
  if (!IsCompleteSnapshot(folder)) {
    return Unsupported(repo.full() + ": expected a model (config.json) or an adapter (adapter_config.json) with its " +
                       "weights as safetensors, found neither");
  }
  return folder;
}

}  // namespace loramux
