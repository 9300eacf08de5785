// Reads safetensors files, single or sharded, by mapping them into memory. The header is untrusted input: sizes,
// offsets, shapes and their products are checked before use. Refused, naming the file and the tensor: overlapping,
// out-of-range or mistyped entries, duplicate names, and files shorter or longer than the header says. Format:
// https://huggingface.co/docs/safetensors (u64 header length, JSON header, data).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "formats/dtype.h"

namespace loramux {

// Largest header accepted, as in the reference implementation.
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// What a file may hold; the defaults are those of the format. Adapters get smaller ones (adapter_file.cc).
struct TensorFileLimits {
  std::uint64_t max_header_bytes = kMaxSafetensorsHeaderBytes;
  std::size_t max_tensors = std::numeric_limits<std::size_t>::max();
  // Bytes of the file without storage behind them (holes of a sparse file). They cost the file's owner nothing, but
  // reading them costs as much as reading data.
  std::uint64_t max_hole_bytes = std::numeric_limits<std::uint64_t>::max();
};

// A read-only mapping of a regular file (a FIFO or a device is refused). Movable; unmaps at destruction. If the file is
// shortened in place while it is mapped, the next access to a lost page raises SIGBUS. So replace such files by
// renaming.
class MappedFile {
 public:
  // Maps the file at `path`.
  static Result<MappedFile> Open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::filesystem::path path_;
};

// One tensor of a file: row-major, little-endian. `data` points into the mapping and may be unaligned for its type.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // every extent >= 0; the byte count fits in int64
  std::span<const std::byte> data;  // exactly product(shape) * DTypeSize(dtype) bytes
  std::int64_t ElementCount() const;
};

// Formats a shape: "[4, 2048]".
std::string ShapeToString(std::span<const std::int64_t> shape);

// The tensors of one or several safetensors files. Owns the mappings. Immutable; thread-safe to read.
class TensorFile {
 public:
  // Opens one file.
  static Result<TensorFile> Open(const std::filesystem::path& path);
  // Opens a Hugging Face directory: model.safetensors, or model.safetensors.index.json with its shards. Errors: a shard
  // name in the index that leaves the directory (absolute, ".."); a tensor in the index that its shard lacks. If only
  // pickled weights (.bin) exist, the error says that loramux reads safetensors only.
  static Result<TensorFile> OpenModelDirectory(const std::filesystem::path& directory);

  // Parses a header and its data from memory; `label` names the source in errors. `bytes` must outlive the result. Open
  // uses this, and the fuzzer calls it.
  static Result<std::vector<StoredTensor>> Parse(std::span<const std::byte> bytes, const std::string& label);

  // Null if there is no such tensor.
  const StoredTensor* Find(std::string_view name) const;
  // In the order of the files, then of the header.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  // The mapped files.
  const std::vector<MappedFile>& files() const { return files_; }
  // Bytes of all mapped files.
  std::int64_t TotalBytes() const;

 private:
  struct NameHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const { return std::hash<std::string_view>{}(name); }
  };

  TensorFile() = default;
  // Opens the shards that model.safetensors.index.json names.
  static Result<TensorFile> OpenShards(const std::filesystem::path& directory);
  // Maps one more file and adds its tensors.
  Status Add(const std::filesystem::path& path);

  std::vector<MappedFile> files_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, std::size_t, NameHash, std::equal_to<>> index_;  // name -> index in tensors_
};

}  // namespace loramux
