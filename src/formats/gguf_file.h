// Reads GGUF files, versions 2 and 3, by mapping them into memory. A file is untrusted: counts, lengths, types, shapes,
// offsets and their products are checked before use. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
// (magic, version, counts, metadata, tensor descriptions, aligned data).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/result.h"
#include "formats/safetensors.h"

namespace loramux {

// How the elements of a tensor are stored: a row of the format's table. Blocks lie along a row.
struct GgufType {
  std::uint32_t id;
  const char* name;          // "Q4_K"
  std::int64_t block;        // elements of a block
  std::int64_t block_bytes;  // bytes of a block
  const char* instead;       // the nearest type that loramux reads, if it cannot read this one; else null
};

// The type with this number; null if there is none.
const GgufType* FindGgufType(std::uint32_t id);

// A list of the metadata: of texts, or of numbers.
class GgufArray {
 public:
  enum class Element : std::uint8_t { kText, kNumber };
  GgufArray(Element element, std::uint32_t type, std::uint64_t count, std::span<const std::byte> bytes)
      : element_(element), type_(type), count_(count), bytes_(bytes) {}
  Element element() const { return element_; }
  std::uint64_t size() const { return count_; }
  // In order. REQUIRES: an array of texts (of numbers).
  std::vector<std::string_view> Texts() const;
  std::vector<double> Numbers() const;

 private:
  Element element_;
  std::uint32_t type_;
  std::uint64_t count_;
  std::span<const std::byte> bytes_;  // checked by the reader
};

// A value of the metadata. Integers above 2^63 - 1 are refused when the file is read. Texts and arrays refer to the
// mapping; texts may hold any bytes.
using GgufValue = std::variant<std::int64_t, float, double, bool, std::string_view, GgufArray>;

// A value as messages show it: `12`, `'yarn'`, `an array`.
std::string DescribeGguf(const GgufValue& value);

// One tensor, row-major.
struct GgufTensor {
  std::string name;
  const GgufType* type = nullptr;
  std::vector<std::int64_t> shape;  // 1 to 4 extents above 0, the last one that of neighbours in a row
  std::uint64_t offset = 0;         // from the start of the file
  std::uint64_t bytes = 0;          // bytes of the tensor's blocks
  std::span<const std::byte> data;  // exactly these bytes; empty after ParseHead
};

// Owns the mapping. Immutable; thread-safe to read.
class GgufFile {
 public:
  // Maps and reads a file. Error (file and field named): it is no GGUF file, damaged, of another version or
  // byte order, or a part of a split model.
  static Result<GgufFile> Open(const std::filesystem::path& path);
  // Reads a file in memory; `label` names it in errors. `bytes` outlive the result.
  static Result<GgufFile> Parse(std::span<const std::byte> bytes, const std::string& label);
  // Reads a file of `file_bytes` bytes of which `head` is the beginning. Error: also, metadata or descriptions of
  // tensors lie beyond it. The tensors have no data.
  static Result<GgufFile> ParseHead(std::span<const std::byte> head, std::uint64_t file_bytes,
                                    const std::string& label);

  // How errors name the file.
  const std::string& label() const { return label_; }

  // The metadata: null if there is no such key. `keys` is in the order of the file.
  const GgufValue* Find(std::string_view key) const;
  const std::vector<std::string>& keys() const { return keys_; }
  // Typed access: nullopt if there is no such key. Error: it has another type, or lies outside [low, high].
  // A float32 is read as the number of fewest digits that rounds to it (1e-05), as configurations have it.
  Result<std::optional<std::int64_t>> Int(const std::string& key, std::int64_t low, std::int64_t high) const;
  Result<std::optional<double>> Number(const std::string& key) const;
  Result<std::optional<bool>> Bool(const std::string& key) const;
  Result<std::optional<std::string>> Text(const std::string& key) const;
  Result<std::optional<GgufArray>> Array(const std::string& key, GgufArray::Element element) const;
  // The error for a key of another kind than expected.
  Error Bad(const std::string& key, const std::string& expected) const;

  // The tensors in the order of the file; null if there is no such tensor.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* FindTensor(std::string_view name) const;

 private:
  class Reader;
  explicit GgufFile(std::string label) : label_(std::move(label)) {}

  std::string label_;
  std::optional<MappedFile> mapping_;
  std::vector<std::string> keys_;
  std::unordered_map<std::string, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string, std::size_t> index_;  // name -> index in tensors_
};

// Whether a path names a GGUF file: it ends in ".gguf".
bool IsGgufPath(const std::filesystem::path& path);

}  // namespace loramux
