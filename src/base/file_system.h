// An interface to write files so that acknowledged data survives a crash. Implementations: the operating system, and
// injected faults in tests (every operation may fail, a write may be short).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux {

// An open file for appending. Closed at destruction. Not thread-safe. Errors name the file.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Appends a prefix of `data` and returns its length, which is at least 1 unless `data` is empty.
  virtual Result<std::size_t> Append(std::string_view data) = 0;
  // Ok means that all appended data is on disk. After an error it is unknown which part is.
  virtual Status Sync() = 0;
  // Shortens the file to `size` bytes.
  virtual Status Truncate(std::uint64_t size) = 0;
};

// An exclusive lock on a file, held until destruction.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

// File system operations. Thread-safe. Errors: kNotFound, kUnavailable (Lock: another process holds it), otherwise
// kIoError.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Creates `directory` and its missing parents.
  virtual Status CreateDirectories(const std::filesystem::path& directory) = 0;
  // Creates an empty file, readable by its owner only; replaces an existing one.
  virtual Result<std::unique_ptr<WritableFile>> Create(const std::filesystem::path& path) = 0;
  // Opens an existing file; appends go to its end.
  virtual Result<std::unique_ptr<WritableFile>> OpenForAppend(const std::filesystem::path& path) = 0;
  // Returns the whole content of a file.
  virtual Result<std::string> Read(const std::filesystem::path& path) = 0;
  // Renames `from` to `to` and replaces `to` atomically.
  virtual Status Rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  // Ok means that names created or changed in `directory` survive a crash.
  virtual Status SyncDirectory(const std::filesystem::path& directory) = 0;
  // Takes the exclusive lock among processes on a file, which is created if necessary and stays. Never waits.
  virtual Result<std::unique_ptr<FileLock>> Lock(const std::filesystem::path& path) = 0;
};

// Writes `content` to a new file beside `path` (its name with ".new" appended), and renames it over `path` once it is
// on disk. After a crash at any moment, the old or the new content is there.
Status ReplaceFile(FileSystem& files, const std::filesystem::path& path, std::string_view content);

// The operating system's files. Lives as long as the process.
FileSystem& OsFileSystem();

}  // namespace loramux
