// The tensors of one safetensors file that stays on disk; an open file, read with pread. For adapters, which come and
// go and whose files may be rewritten or shortened while the server runs. A read then fails or returns other bytes,
// which the digest detects; it never raises SIGBUS as a mapping does. A file replaced by renaming stays readable.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "formats/dtype.h"
#include "formats/file.h"
#include "formats/safetensors.h"

namespace loramux {

// The place of one tensor in the file: row-major, little-endian.
struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // every extent >= 0
  std::uint64_t offset = 0;         // from the start of the file
  std::uint64_t bytes = 0;          // product(shape) * DTypeSize(dtype)
  std::int64_t ElementCount() const { return static_cast<std::int64_t>(bytes / DTypeSize(dtype)); }
};

// Movable; owns one file descriptor. Thread-safe to read.
class TensorReader {
 public:
  // Opens the file (or takes an open one), and reads and checks the header as TensorFile::Parse does. Reads nothing of
  // a file beyond `limits` but its length.
  static Result<TensorReader> Open(const std::filesystem::path& path);
  static Result<TensorReader> Open(RegularFile file, const std::filesystem::path& path,
                                   const TensorFileLimits& limits = {});

  // In header order. Addresses are stable as long as the reader lives, even if it is moved.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  // Reads all bytes of a tensor; resizes `buffer` to fit.
  Status Read(const TensorEntry& tensor, std::vector<std::byte>& buffer) const;
  // Reads `out.size()` bytes from byte `first` of the tensor on. REQUIRES: they lie in the tensor.
  Status Read(const TensorEntry& tensor, std::uint64_t first, std::span<std::byte> out) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  TensorReader(RegularFile file, std::filesystem::path path) : file_(std::move(file)), path_(std::move(path)) {}
  RegularFile file_;
  std::filesystem::path path_;
  std::vector<TensorEntry> tensors_;
};

}  // namespace loramux
