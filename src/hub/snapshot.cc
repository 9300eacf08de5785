#include "hub/snapshot.h"

#include <algorithm>
#include <sys/file.h>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/bytes.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

// Holds a file's download for this process, until it is destroyed.
class DownloadLock {
 public:
  explicit DownloadLock(const fs::path& path) : descriptor_(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644)) {
    held_ = descriptor_ >= 0 && flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
  }
  ~DownloadLock() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  DownloadLock(const DownloadLock&) = delete;
  DownloadLock& operator=(const DownloadLock&) = delete;
  bool held() const { return held_; }

 private:
  const int descriptor_;
  bool held_ = false;
};

bool IsThere(const fs::path& blob, const RepoFile& file) {
  std::error_code error;
  return fs::file_size(blob, error) == static_cast<std::uintmax_t>(file.bytes) && !error;
}

Status CheckRoom(const HubCache& cache, std::int64_t bytes) {
  std::error_code error;
  fs::path folder = cache.root();
  while (!folder.empty() && !fs::exists(folder, error) && folder != folder.parent_path()) folder = folder.parent_path();
  const fs::space_info space = fs::space(folder.empty() ? fs::path(".") : folder, error);
  if (error || space.available >= static_cast<std::uintmax_t>(bytes)) return Ok{};
  return IoError(fmt::format("{}: expected room for {}, found {}; --download-dir chooses another folder",
                             cache.root().string(), FormatBytes(bytes),
                             FormatBytes(static_cast<std::int64_t>(space.available))));
}

Status FetchFile(HubClient& client, const RepoName& repo, const RepoFiles& files, const RepoFile& file,
                 const fs::path& blob, const HubClient::OnBytes& on_bytes) {
  if (IsThere(blob, file)) return Ok{};
  const fs::path partial = blob.string() + ".incomplete";
  const DownloadLock lock(partial.string() + ".lock");
  if (!lock.held())
    return Unavailable(blob.string() + ": another process downloads this file, or it cannot be written");
  RETURN_IF_ERROR(client.Download(repo, files, file, partial, on_bytes));
  std::error_code error;
  fs::rename(partial, blob, error);
  if (error) return IoError("cannot rename " + partial.string() + ": " + error.message());
  fs::remove(partial.string() + ".lock", error);
  return Ok{};
}

}  // namespace

Result<fs::path> FetchSnapshot(const RepoName& repo, const SnapshotOptions& options, const SnapshotProgress& progress) {
  const HubCache cache(options.cache);
  if (auto folder = cache.Find(repo)) return *folder;
  if (options.offline) {
    return NotFound(fmt::format("{}: not in the cache {}, or not all of it; leave out --offline to download it",
                                repo.full(), options.cache));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<HubClient> client, HubClient::Create(options.hub));
  ASSIGN_OR_RETURN(const RepoFiles files, client->List(repo));
  if (std::ranges::none_of(files.files, [](const RepoFile& file) { return file.name.ends_with(".safetensors"); })) {
    return Unsupported(repo.full() + " has no *.safetensors, but GGUF files: download one, and give its path; an " +
                       "adapter may be named as hf://" + repo.full());
  }
  std::int64_t missing = 0, done = 0;
  for (const RepoFile& file : files.files) {
    ASSIGN_OR_RETURN(const fs::path blob, cache.BlobPath(repo, file));
    if (!IsThere(blob, file)) missing += file.bytes;
  }
  RETURN_IF_ERROR(CheckRoom(cache, missing));
  for (const RepoFile& file : files.files) {
    ASSIGN_OR_RETURN(const fs::path blob, cache.BlobPath(repo, file));
    const auto on_bytes = [&](std::int64_t bytes) -> Status {
      progress(done + bytes, files.Bytes());
      return Ok{};
    };
    RETURN_IF_ERROR(FetchFile(*client, repo, files, file, blob, on_bytes));
    progress(done += file.bytes, files.Bytes());
  }
  return cache.Publish(repo, files);
}

}  // namespace loramux
