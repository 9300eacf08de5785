#include "base/file_system.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/file.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

namespace loramux {
namespace {

namespace fs = std::filesystem;

Error SystemError(const fs::path& path, const char* what, int number) {
  const std::string message = path.string() + ": cannot " + what + ": " + std::strerror(number);
  return number == ENOENT ? NotFound(message) : IoError(message);
}

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

Result<Descriptor> Open(const fs::path& path, int flags) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (descriptor < 0) return SystemError(path, "open", errno);
  return Descriptor(descriptor);
}

class OsWritableFile final : public WritableFile {
 public:
  OsWritableFile(Descriptor descriptor, fs::path path) : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

  Result<std::size_t> Append(std::string_view data) override {
    ssize_t count = 0;
    do {
      count = ::write(descriptor_.value(), data.data(), data.size());
    } while (count < 0 && errno == EINTR);
    if (count < 0) return SystemError(path_, "write", errno);
    if (count == 0 && !data.empty()) return SystemError(path_, "write", ENOSPC);
    return static_cast<std::size_t>(count);
  }
  Status Sync() override {
    if (::fdatasync(descriptor_.value()) != 0) return SystemError(path_, "sync to disk", errno);
    return Ok{};
  }
  Status Truncate(std::uint64_t size) override {
    if (::ftruncate(descriptor_.value(), static_cast<off_t>(size)) != 0) return SystemError(path_, "truncate", errno);
    return Ok{};
  }

 private:
  Descriptor descriptor_;
  fs::path path_;
};

class OsFileLock final : public FileLock {
 public:
  explicit OsFileLock(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

 private:
  Descriptor descriptor_;
};

Result<std::unique_ptr<WritableFile>> OpenWritable(const fs::path& path, int flags) {
  ASSIGN_OR_RETURN(Descriptor descriptor, Open(path, O_WRONLY | O_APPEND | flags));
  return std::unique_ptr<WritableFile>(std::make_unique<OsWritableFile>(std::move(descriptor), path));
}

class Os final : public FileSystem {
 public:
  Status CreateDirectories(const fs::path& directory) override {
    std::error_code error;
    fs::create_directories(directory, error);
    if (error) return SystemError(directory, "create the directory", error.value());
    return Ok{};
  }
  Result<std::unique_ptr<WritableFile>> Create(const fs::path& path) override {
    return OpenWritable(path, O_CREAT | O_TRUNC);
  }
  Result<std::unique_ptr<WritableFile>> OpenForAppend(const fs::path& path) override { return OpenWritable(path, 0); }

  Result<std::string> Read(const fs::path& path) override {
    ASSIGN_OR_RETURN(const Descriptor descriptor, Open(path, O_RDONLY));
    std::string content;
    char buffer[1 << 16];
    while (true) {
      const ssize_t count = ::read(descriptor.value(), buffer, sizeof(buffer));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return SystemError(path, "read", errno);
      if (count == 0) return content;
      content.append(buffer, static_cast<std::size_t>(count));
    }
  }
  Status Rename(const fs::path& from, const fs::path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return SystemError(from, ("rename to " + to.string()).c_str(), errno);
    return Ok{};
  }
  Status SyncDirectory(const fs::path& directory) override {
    ASSIGN_OR_RETURN(const Descriptor descriptor, Open(directory, O_RDONLY | O_DIRECTORY));
    if (::fsync(descriptor.value()) != 0) return SystemError(directory, "sync the directory to disk", errno);
    return Ok{};
  }
  Result<std::unique_ptr<FileLock>> Lock(const fs::path& path) override {
    ASSIGN_OR_RETURN(Descriptor descriptor, Open(path, O_RDWR | O_CREAT));
    if (::flock(descriptor.value(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return Unavailable(path.string() + ": another process holds the lock");
      return SystemError(path, "lock", errno);
    }
    return std::unique_ptr<FileLock>(std::make_unique<OsFileLock>(std::move(descriptor)));
  }
};

}  // namespace

Status ReplaceFile(FileSystem& files, const fs::path& path, std::string_view content) {
  fs::path temporary = path;
  temporary += ".new";
  ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.Create(temporary));
  while (!content.empty()) {
    ASSIGN_OR_RETURN(const std::size_t written, file->Append(content));
    content.remove_prefix(written);
  }
  RETURN_IF_ERROR(file->Sync());
  RETURN_IF_ERROR(files.Rename(temporary, path));
  return files.SyncDirectory(path.has_parent_path() ? path.parent_path() : ".");
}

FileSystem& OsFileSystem() {
  static Os os;
  return os;
}

}  // namespace loramux
