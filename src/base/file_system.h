// Writing files so that what was acknowledged survives a crash. A seam: the operating system here, injected faults in
// tests (every operation may fail, a write may be short).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux {

// Closed at destruction. Not thread-safe. Errors name the file.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Appends a prefix of `data` and returns its length, which is at least 1 unless `data` is empty.
  virtual Result<std::size_t> Append(std::string_view data) = 0;
  // What was appended is on the disk when this returns Ok. After an error nobody knows what is.
  virtual Status Sync() = 0;
  virtual Status Truncate(std::uint64_t size) = 0;
};

// Held until destruction.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

// Thread-safe. Errors: kNotFound, kUnavailable (Lock: another process holds it), else kIoError.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual Status CreateDirectories(const std::filesystem::path& directory) = 0;
  // An empty file, whatever was there before, for its owner only.
  virtual Result<std::unique_ptr<WritableFile>> Create(const std::filesystem::path& path) = 0;
  // An existing file; appends go to its end.
  virtual Result<std::unique_ptr<WritableFile>> OpenForAppend(const std::filesystem::path& path) = 0;
  virtual Result<std::string> Read(const std::filesystem::path& path) = 0;
  // Replaces `to` atomically.
  virtual Status Rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  // Names that were created or changed in `directory` survive a crash when this returns Ok.
  virtual Status SyncDirectory(const std::filesystem::path& directory) = 0;
  // Exclusive among processes, on a file that is created if necessary and stays. Never waits.
  virtual Result<std::unique_ptr<FileLock>> Lock(const std::filesystem::path& path) = 0;
};

// Writes `content` to a new file beside `path` (with ".new" behind its name), and puts it in its place once it is on
// the disk: after a crash at any moment the old content is there, or the new one.
Status ReplaceFile(FileSystem& files, const std::filesystem::path& path, std::string_view content);

// Lives as long as the process.
FileSystem& OsFileSystem();

}  // namespace loramux
