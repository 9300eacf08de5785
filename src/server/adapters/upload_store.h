// Adapters that clients send instead of naming a folder or a source: one folder for each upload, which goes with the
// last version that was opened from it.
#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "base/file_system.h"
#include "base/result.h"
#include "server/adapters/upload_parser.h"

namespace loramux {

// The folder of an upload. It is removed from the disk when this object goes, unless the store has been closed.
class UploadFolder final : public UploadedFiles {
 public:
  // `owned`: false for a folder that an earlier process left. It is kept until Own is called: what could not be opened
  // now may be opened later.
  UploadFolder(FileSystem* files, std::filesystem::path path, std::shared_ptr<const std::atomic<bool>> closed,
               bool owned);
  ~UploadFolder() override;
  UploadFolder(const UploadFolder&) = delete;
  UploadFolder& operator=(const UploadFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void Own() { owned_ = true; }
  Status Begin(std::string_view name) override;
  Status Append(std::string_view bytes) override;
  // Ok means that all files are on disk.
  Status Finish();

 private:
  Status EndFile();

  FileSystem* const files_;
  const std::filesystem::path path_;
  const std::shared_ptr<const std::atomic<bool>> closed_;
  std::atomic<bool> owned_;
  std::unique_ptr<WritableFile> file_;
  std::set<std::string, std::less<>> names_;
};

// Thread-safe. Every method may block on the disk.
class UploadStore {
 public:
  // Keeps uploads in `directory`, which is made if it is missing. `files` must outlive the store. Removes the folders
  // of uploads that an earlier process left there, but those whose names are in `keep`.
  static Result<std::unique_ptr<UploadStore>> Open(FileSystem* files, const std::filesystem::path& directory,
                                                   const std::set<std::filesystem::path>& keep);
  ~UploadStore();

  // Begins an upload: an empty folder of its own.
  Result<std::shared_ptr<UploadFolder>> Begin();
  // The folder at `path`, for as long as the result is held; null: `path` is none of this store's folders.
  std::shared_ptr<UploadFolder> Hold(const std::filesystem::path& path);
  // An adapter in the folder at `path`, which is held, is served: from now on it goes when it is no longer held. Does
  // nothing for other paths.
  void Own(const std::filesystem::path& path);

  // The canonical form.
  const std::filesystem::path& directory() const { return directory_; }

 private:
  UploadStore(FileSystem* files, std::filesystem::path directory);
  std::shared_ptr<UploadFolder> Enter(const std::filesystem::path& path, bool owned);

  FileSystem* const files_;
  const std::filesystem::path directory_;
  const std::shared_ptr<std::atomic<bool>> closed_;
  std::mutex mutex_;
  std::map<std::filesystem::path, std::weak_ptr<UploadFolder>> folders_;
};

}  // namespace loramux
