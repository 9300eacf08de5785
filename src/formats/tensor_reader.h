// The tensors of one adapter in files that stay on disk; open files, read with pread. For adapters, which come and
// go and whose files may be rewritten or shortened while the server runs. A read then fails or returns other bytes,
// which the digest detects; it never raises SIGBUS as a mapping does. A file replaced by renaming stays readable.
#pragma once

#include <cstdint>
#include <deque>
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

struct TensorPart;

// How a matrix lies in its file, where that is not row-major in the order of its shape.
struct TensorView {
  std::int64_t rows = 0, columns = 0;  // extents of the stored matrix, row-major
  bool transposed = false;             // rows and columns are exchanged when it is read
  bool q8_0 = false;                   // stored in blocks of GGUF's Q8_0, read as F32
  // The rows that are the tensor's, in its order; null: all. Many tensors may share them.
  std::shared_ptr<const std::vector<std::int64_t>> picked;
  // If not transposed, the columns first_column, first_column + column_step, ... are read; columns_read 0: all.
  std::int64_t first_column = 0, column_step = 1, columns_read = 0;
  // Several matrices as one: rows below rows or, with `beside`, columns beside columns. Empty: it is one matrix.
  std::vector<TensorPart> joined;
  bool beside = false;
};

// One tensor: row-major, little-endian, as Read returns it.
struct TensorEntry {
  std::string name;  // as in the file
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;              // every extent >= 0
  std::uint64_t offset = 0;                     // bytes from the start of the file
  std::uint64_t bytes = 0;                      // product(shape) * DTypeSize(dtype)
  std::size_t file = 0;                         // index of the reader's file that holds it
  std::string peft_name = {};                   // the name that PEFT would give it; empty: `name`
  std::shared_ptr<const TensorView> view = {};  // null: it lies as it is read
  std::int64_t ElementCount() const { return static_cast<std::int64_t>(bytes / DTypeSize(dtype)); }
};

// A matrix of a joined one.
struct TensorPart {
  TensorEntry tensor;
  float factor = 1;  // factor of its elements. REQUIRES: the whole is F32, or 1 and the types are the same
};

// Movable; owns one file descriptor. Thread-safe to read.
class TensorReader {
 public:
  // Opens the file (or takes an open one), and reads and checks the header as TensorFile::Parse does. Reads nothing of
  // a file beyond `limits` but its length.
  static Result<TensorReader> Open(const std::filesystem::path& path);
  static Result<TensorReader> Open(RegularFile file, const std::filesystem::path& path,
                                   const TensorFileLimits& limits = {});

  // Takes an open file whose tensors another reader found. `limits`: as Open.
  static Result<TensorReader> Of(RegularFile file, const std::filesystem::path& path, std::vector<TensorEntry> tensors,
                                 const TensorFileLimits& limits);
  // Shares the open files of several readers, and has none of their tensors. `files[i]` receives the number of the
  // first file of reader i, which TensorEntry::file of its tensors counts from. `path` stands for all in errors.
  // REQUIRES: at least one reader.
  static TensorReader Sharing(std::span<const TensorReader* const> readers, const std::filesystem::path& path,
                              std::vector<std::size_t>& files);
  // Adds a safetensors file to those of the reader. Errors: as Open; addresses of earlier tensors change.
  Status Add(RegularFile file, const std::filesystem::path& path, const TensorFileLimits& limits = {});
  // Keeps a tensor that is a part of one of `tensors`; its address is as stable as theirs.
  const TensorEntry* Keep(TensorEntry part) { return &parts_.emplace_back(std::move(part)); }

  // In header order. Addresses are stable as long as the reader lives, even if it is moved.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  // A stored matrix that was read last. Many views may be cut from one.
  struct Stored {
    std::vector<std::byte> bytes;  // empty: none
    std::uint64_t offset = 0;
    std::size_t file = 0;
  };
  // Reads all bytes of a tensor; resizes `buffer` to fit. A view is cut from `last` if that is its matrix, which else
  // becomes the one read.
  Status Read(const TensorEntry& tensor, std::vector<std::byte>& buffer, Stored* last = nullptr) const;
  // Reads `out.size()` bytes from byte `first` of the tensor on. One with a view is read whole each time. REQUIRES:
  // they lie in the tensor.
  Status Read(const TensorEntry& tensor, std::uint64_t first, std::span<std::byte> out) const;
  // The first file; the file of a tensor.
  const std::filesystem::path& path() const { return files_.front().path; }
  const std::filesystem::path& PathOf(const TensorEntry& tensor) const { return files_[tensor.file].path; }
  // Calls `change` for every tensor, to give it a name and a view. Ends with its first error.
  Status ChangeEach(const std::function<Status(TensorEntry&)>& change);

 private:
  // Reads the stored matrix, and brings its elements into the order of the tensor.
  Status ReadView(const TensorEntry& tensor, std::span<std::byte> out, Stored& last) const;
  Status ReadJoined(const TensorEntry& tensor, std::span<std::byte> out) const;
  struct File {
    std::shared_ptr<const RegularFile> file;
    std::filesystem::path path;
  };
  TensorReader() = default;
  std::vector<File> files_;  // at least one
  std::vector<TensorEntry> tensors_;
  std::deque<TensorEntry> parts_;
};

}  // namespace loramux
