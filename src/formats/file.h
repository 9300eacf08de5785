// Opens files of untrusted kind and size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/result.h"

namespace loramux {

// A file descriptor of a regular file, closed at destruction.
class RegularFile {
 public:
  // Opens a file for reading; follows symbolic links. Errors: kNotFound (no such file), kInvalidArgument (a directory,
  // FIFO or device; never waits for one), kIoError (any other error of the operating system).
  static Result<RegularFile> Open(const std::filesystem::path& path);
  RegularFile(RegularFile&& other) noexcept;
  RegularFile& operator=(RegularFile&& other) noexcept;
  ~RegularFile();
  // Owned by this object.
  int descriptor() const { return descriptor_; }
  // As of Open.
  std::size_t size() const { return size_; }
  // Bytes that have no storage: the holes of a sparse file. Where the file system does not report holes, the bytes for
  // which no blocks are allocated. Not thread-safe.
  std::uint64_t HoleBytes() const;
  // Fills `out` from byte `offset` on. Error: the operating system's, or the file is too short. Unlike a mapping it
  // never raises a signal when the file is shortened. Thread-safe. `path` names the file in errors.
  Status ReadAt(std::uint64_t offset, std::span<std::byte> out, const std::filesystem::path& path) const;
  // The real location of the open file, symbolic links resolved, whatever happened to its path since.
  Result<std::filesystem::path> RealPath() const;

 private:
  RegularFile(int descriptor, std::size_t size) : descriptor_(descriptor), size_(size) {}
  int descriptor_ = -1;
  std::size_t size_ = 0;
};

// The whole content of an open file of at most `max_bytes`. `path` names the file in errors.
Result<std::string> ReadText(const RegularFile& file, std::size_t max_bytes, const std::filesystem::path& path);

// The whole content of a regular file. Error (kInvalidArgument): the file is larger than `max_bytes`.
Result<std::string> ReadTextFile(const std::filesystem::path& path, std::size_t max_bytes);

// Largest JSON file (configuration, index) that is read, in bytes.
inline constexpr std::size_t kMaxJsonFileBytes = std::size_t{64} << 20;

}  // namespace loramux
