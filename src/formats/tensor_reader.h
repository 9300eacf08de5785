// The tensors of one safetensors file that stays on disk; an open file, read with pread. For adapters, which come and
// go and whose files may be rewritten or shortened while the server runs. A read then fails or returns other bytes,
// which the digest detects; it never raises SIGBUS as a mapping does. A file replaced by renaming stays readable.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "formats/dtype.h"
#include "formats/file.h"
#include "formats/safetensors.h"

namespace loramux {

// How a matrix lies in its file, where that is not row-major in the order of its shape.
struct TensorView {
  std::int64_t rows = 0, columns = 0;  // of the stored matrix, row-major
  bool transposed = false;             // the matrix is the stored one with rows and columns exchanged
};

// One tensor: row-major, little-endian, as Read returns it.
struct TensorEntry {
  std::string name;  // as in the file
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;              // every extent >= 0
  std::uint64_t offset = 0;                     // from the start of the file
  std::uint64_t bytes = 0;                      // product(shape) * DTypeSize(dtype)
  std::string peft_name = {};                   // the name that PEFT would give it; empty: `name`
  std::shared_ptr<const TensorView> view = {};  // null: it lies as it is read
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
  // Reads `out.size()` bytes from byte `first` of the tensor on. One with a view is read whole each time. REQUIRES:
  // they lie in the tensor.
  Status Read(const TensorEntry& tensor, std::uint64_t first, std::span<std::byte> out) const;
  const std::filesystem::path& path() const { return path_; }
  // Calls `change` for every tensor, to give it a name and a view. Ends with its first error.
  Status ChangeEach(const std::function<Status(TensorEntry&)>& change);

 private:
  // Reads the stored matrix, and brings its elements into the order of the tensor.
  Status ReadView(const TensorEntry& tensor, std::span<std::byte> out) const;
  TensorReader(RegularFile file, std::filesystem::path path) : file_(std::move(file)), path_(std::move(path)) {}
  RegularFile file_;
  std::filesystem::path path_;
  std::vector<TensorEntry> tensors_;
};

}  // namespace loramux
