#include "server/adapters/upload_store.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "http/random_source.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

void RemoveFolder(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) spdlog::warn("{}: the files of an upload could not be removed: {}", path.string(), error.message());
}

// Whether Begin may have made the folder: what people put beside it is theirs.
bool IsUpload(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

UploadFolder::UploadFolder(FileSystem* files, fs::path path, std::shared_ptr<const std::atomic<bool>> closed,
                           bool owned)
    : files_(files), path_(std::move(path)), closed_(std::move(closed)), owned_(owned) {}

UploadFolder::~UploadFolder() {
  file_ = nullptr;
  if (owned_ && !*closed_) RemoveFolder(path_);
}

Status UploadFolder::Begin(std::string_view name) {
  RETURN_IF_ERROR(EndFile());
  if (!names_.emplace(name).second) {
    return InvalidArgument(fmt::format("The upload: expected each file once, found '{}' twice", name));
  }
  ASSIGN_OR_RETURN(file_, files_->Create(path_ / name));
  return Ok{};
}

Status UploadFolder::Append(std::string_view bytes) {
  while (!bytes.empty()) {
    ASSIGN_OR_RETURN(const std::size_t written, file_->Append(bytes));
    bytes.remove_prefix(written);
  }
  return Ok{};
}

Status UploadFolder::Finish() {
  RETURN_IF_ERROR(EndFile());
  RETURN_IF_ERROR(files_->SyncDirectory(path_));
  return files_->SyncDirectory(path_.parent_path());
}

Status UploadFolder::EndFile() {
  if (file_ == nullptr) return Ok{};
  const Status synced = file_->Sync();
  file_ = nullptr;
  return synced;
}

UploadStore::UploadStore(FileSystem* files, fs::path directory)
    : files_(files), directory_(std::move(directory)), closed_(std::make_shared<std::atomic<bool>>(false)) {}

UploadStore::~UploadStore() { *closed_ = true; }

Result<std::unique_ptr<UploadStore>> UploadStore::Open(FileSystem* files, const fs::path& directory,
                                                       const std::set<fs::path>& keep) {
  RETURN_IF_ERROR(files->CreateDirectories(directory));
  std::error_code error;
  const fs::path canonical = fs::canonical(directory, error);
  std::vector<fs::path> left;
  for (fs::directory_iterator entry(canonical, error), end; !error && entry != end; entry.increment(error)) {
    if (IsUpload(entry->path()) && !keep.contains(entry->path().filename())) left.push_back(entry->path());
  }
  if (error) return IoError(fmt::format("{}: {}", directory.string(), error.message()));
  for (const fs::path& path : left) RemoveFolder(path);
  return std::unique_ptr<UploadStore>(new UploadStore(files, canonical));
}

Result<std::shared_ptr<UploadFolder>> UploadStore::Begin() {
  const fs::path path = directory_ / fmt::format("{:016x}", RandomIdBits());
  RETURN_IF_ERROR(files_->CreateDirectories(path));
  return Enter(path, /*owned=*/true);
}

std::shared_ptr<UploadFolder> UploadStore::Hold(const fs::path& path) {
  if (path.parent_path() != directory_) return nullptr;
  return Enter(path, /*owned=*/false);
}

void UploadStore::Own(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  const auto known = folders_.find(path);
  if (known == folders_.end()) return;
  if (const auto folder = known->second.lock()) folder->Own();
}

std::shared_ptr<UploadFolder> UploadStore::Enter(const fs::path& path, bool owned) {
  const std::lock_guard lock(mutex_);
  std::erase_if(folders_, [](const auto& folder) { return folder.second.expired(); });
  std::weak_ptr<UploadFolder>& known = folders_[path];
  auto folder = known.lock();
  if (folder == nullptr) known = folder = std::make_shared<UploadFolder>(files_, path, closed_, owned);
  return folder;
}

}  // namespace loramux
