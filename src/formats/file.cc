#include "formats/file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/mman.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/message.h"
#include "formats/safetensors.h"

namespace loramux {
namespace {

Error SystemError(const std::filesystem::path& path, const char* what, int number) {
  const std::string message = path.string() + ": " + what + ": " + std::strerror(number);
  return number == ENOENT || number == ENOTDIR ? NotFound(message) : IoError(message);
}

const char* KindOfFile(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "not a regular file";
}

}  // namespace

Result<RegularFile> RegularFile::Open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer. It has no effect on regular files.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return SystemError(path, "cannot open", errno);
  RegularFile file(descriptor, 0);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return SystemError(path, "cannot stat", errno);
  if (!S_ISREG(status.st_mode)) {
    return InvalidArgument(path.string() + ": expected a regular file, found " + KindOfFile(status.st_mode));
  }
  file.size_ = static_cast<std::size_t>(status.st_size);
  return file;
}

RegularFile::RegularFile(RegularFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

RegularFile& RegularFile::operator=(RegularFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

RegularFile::~RegularFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::uint64_t RegularFile::HoleBytes() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) return 0;
  const auto stored = static_cast<std::uint64_t>(status.st_blocks) * 512;
  if (stored >= size_) return 0;
  // Fewer blocks than bytes: holes, or a file system that compresses. The latter reports compressed data as data.
  const auto end = static_cast<off_t>(size_);
  std::uint64_t holes = 0;
  for (off_t at = 0; at < end;) {
    const off_t hole = ::lseek(descriptor_, at, SEEK_HOLE);
    if (hole < 0 && errno == EINVAL) return size_ - stored;  // no such query here
    if (hole < 0 || hole >= end) break;
    off_t data = ::lseek(descriptor_, hole, SEEK_DATA);
    if (data < 0 || data > end) data = end;  // no data follows
    if (data <= hole) break;                 // written to meanwhile
    holes += static_cast<std::uint64_t>(data - hole);
    at = data;
  }
  ::lseek(descriptor_, 0, SEEK_SET);
  return holes;
}

Status RegularFile::ReadAt(std::uint64_t offset, std::span<std::byte> out, const std::filesystem::path& path) const {
  std::size_t filled = 0;
  while (filled < out.size()) {
    const ssize_t count =
        ::pread(descriptor_, out.data() + filled, out.size() - filled, static_cast<off_t>(offset + filled));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError(path, "cannot read", errno);
    if (count == 0) {
      return IoError(path.string() + ": the file became shorter after it was opened: expected " +
                     WithSeparators(out.size()) + " bytes at " + WithSeparators(offset) + ", found " +
                     WithSeparators(filled) + "; replace adapter files by renaming, and load the adapter again");
    }
    filled += static_cast<std::size_t>(count);
  }
  return Ok{};
}

Result<std::filesystem::path> RegularFile::RealPath() const {
  std::error_code error;
  auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor_), error);
  if (error) return IoError("cannot tell where an open file lies (/proc/self/fd): " + error.message());
  return path;
}

Result<std::string> ReadTextFile(const std::filesystem::path& path, std::size_t max_bytes) {
  ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  return ReadText(file, max_bytes, path);
}

Result<std::string> ReadText(const RegularFile& file, std::size_t max_bytes, const std::filesystem::path& path) {
  if (file.size() > max_bytes) {
    return InvalidArgument(path.string() + ": expected at most " + WithSeparators(max_bytes) + " bytes, found " +
                           WithSeparators(file.size()));
  }
  std::string text(file.size(), '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t count = ::read(file.descriptor(), text.data() + filled, text.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError(path, "cannot read", errno);
    if (count == 0) break;  // shortened since Open: return the bytes that are left
    filled += static_cast<std::size_t>(count);
  }
  text.resize(filled);
  return text;
}

// If the file is shortened while it is mapped, a later access to the lost pages raises SIGBUS; nothing portable
// prevents that. Replace model and adapter files by renaming a new file over them, never in place.
Result<MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  MappedFile mapped;
  mapped.path_ = path;
  if (file.size() == 0) return mapped;  // mmap refuses a length of 0
  void* data = ::mmap(nullptr, file.size(), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (data == MAP_FAILED) return SystemError(path, "cannot map into memory", errno);
  mapped.data_ = static_cast<const std::byte*>(data);
  mapped.size_ = file.size();
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace loramux
