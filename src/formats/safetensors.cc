#include "formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/message.h"
#include "formats/file.h"
#include "formats/json_fields.h"
#include "formats/safetensors_header.h"

namespace loramux {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and used in place");

constexpr std::size_t kLengthBytes = 8;
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

struct Sections {
  std::string_view header;
  std::span<const std::byte> data;
};

// Splits a file into header and data.
Result<Sections> SplitFile(std::span<const std::byte> bytes, const std::string& label) {
  if (bytes.size() < kLengthBytes) return CheckSafetensorsHeaderLength(0, bytes.size(), label).error();
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  RETURN_IF_ERROR(CheckSafetensorsHeaderLength(header_bytes, bytes.size(), label));
  const auto rest = bytes.subspan(kLengthBytes);
  return Sections{{reinterpret_cast<const char*>(rest.data()), static_cast<std::size_t>(header_bytes)},
                  rest.subspan(static_cast<std::size_t>(header_bytes))};
}

// Bytes of product(shape) elements; false if the number does not fit in int64. With a zero extent it is 0, whatever the
// others are.
bool TensorBytes(const HeaderEntry& entry, std::uint64_t& bytes) {
  if (std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end()) {
    bytes = 0;
    return true;
  }
  std::int64_t product = static_cast<std::int64_t>(DTypeSize(entry.dtype));
  for (const std::int64_t extent : entry.shape) {
    if (__builtin_mul_overflow(product, extent, &product)) return false;
  }
  bytes = static_cast<std::uint64_t>(product);
  return true;
}

Status CheckEntry(const HeaderEntry& entry, const std::string& label) {
  const auto fail = [&](const std::string& what) {
    return InvalidArgument(label + ": tensor " + Quote(entry.name) + ": " + what);
  };
  if (entry.begin > entry.end) {
    return fail("data_offsets end at " + WithSeparators(entry.end) + " before they begin at " +
                WithSeparators(entry.begin));
  }
  const std::string what = std::string(DTypeName(entry.dtype)) + " " + ShapeToString(entry.shape);
  std::uint64_t bytes = 0;
  if (!TensorBytes(entry, bytes)) return fail(what + " does not fit in 63 bits");
  if (bytes != entry.end - entry.begin) {
    return fail(what + " takes " + WithSeparators(bytes) + " bytes but data_offsets give " +
                WithSeparators(entry.end - entry.begin));
  }
  return Ok{};
}

// Checks that the tensors tile the data: no hole, no overlap, nothing outside.
Status CheckTiling(const std::vector<HeaderEntry>& entries, std::uint64_t data_bytes, const std::string& label) {
  std::vector<std::size_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(entries[a].begin, entries[a].end) < std::pair(entries[b].begin, entries[b].end);
  });
  std::uint64_t covered = 0;
  for (const std::size_t i : order) {
    const HeaderEntry& entry = entries[i];
    if (entry.begin != covered) {
      return InvalidArgument(
          label + ": tensor " + Quote(entry.name) + " begins at byte " + WithSeparators(entry.begin) +
          " of the data, expected " + WithSeparators(covered) +
          (entry.begin < covered ? ": it overlaps another tensor" : ": bytes in between belong to no tensor"));
    }
    covered = entry.end;
  }
  if (covered > data_bytes) {
    return InvalidArgument(label + ": the header promises " + WithSeparators(covered) +
                           " bytes of data but the file holds " + WithSeparators(data_bytes) +
                           ": the file is truncated; download or copy it again");
  }
  if (covered < data_bytes) {
    return InvalidArgument(label + ": the header promises " + WithSeparators(covered) +
                           " bytes of data but the file holds " + WithSeparators(data_bytes) +
                           ": bytes at the end belong to no tensor");
  }
  return Ok{};
}

bool Exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// The names of the pickled weights in a directory, or "" if there are none.
std::string FindPickledWeights(const std::filesystem::path& directory) {
  std::error_code error;
  std::set<std::string> found;  // sorted, so the message does not depend on directory order
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string extension = it->path().extension().string();
    if (extension == ".bin" || extension == ".pt" || extension == ".pth") found.insert(it->path().filename().string());
  }
  return found.empty() ? "" : *found.begin();
}

Error NoWeights(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory, ignored)) {
    return NotFound(directory.string() + ": expected a model directory, found " +
                    (Exists(directory) ? "something else" : "nothing"));
  }
  const std::string expected = directory.string() + ": expected " + kSingleFile + " or " + kIndexFile;
  const std::string pickled = FindPickledWeights(directory);
  if (pickled.empty()) return NotFound(expected + ", found neither");
  return Unsupported(expected + ", found only pickled weights (" + Printable(pickled) +
                     "): loramux reads safetensors only, because unpickling runs code; convert the model first");
}

Status CheckShardName(const std::string& name, const std::string& label) {
  const std::filesystem::path path(name);
  if (name.find('\0') == std::string::npos && path.has_filename() && path.filename() == path && name != "." &&
      name != ".." && path.extension() == ".safetensors") {
    return Ok{};
  }
  return InvalidArgument(label + ": the shard name " + Quote(name) +
                         " is not the plain name of a .safetensors file in the model's directory");
}

using WeightMap = std::map<std::string, std::string, std::less<>>;  // tensor -> shard

Result<WeightMap> ReadIndex(const std::filesystem::path& path) {
  const std::string label = path.string();
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxJsonFileBytes));
  ASSIGN_OR_RETURN(const nlohmann::json index, ParseJsonObject(text, label));
  const auto found = index.find("weight_map");
  if (found == index.end() || !found->is_object() || found->empty()) {
    return InvalidArgument(label + ": expected weight_map to be an object that names the shard of each tensor");
  }
  WeightMap shards;
  for (const auto& [tensor, shard] : found->items()) {
    if (!shard.is_string()) {
      return InvalidArgument(label + ": weight_map[" + Quote(tensor) + "]: expected a file name, found " +
                             Describe(shard));
    }
    RETURN_IF_ERROR(CheckShardName(shard.get_ref<const std::string&>(), label));
    shards.emplace(tensor, shard.get_ref<const std::string&>());
  }
  return shards;
}

}  // namespace

Status CheckSafetensorsHeaderLength(std::uint64_t header_bytes, std::uint64_t file_bytes, const std::string& label,
                                    const TensorFileLimits& limits) {
  if (file_bytes < kLengthBytes) {
    return InvalidArgument(label + ": expected a safetensors file, which begins with an 8-byte header length; found " +
                           std::to_string(file_bytes) + " bytes");
  }
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return InvalidArgument(label + ": the header length says " + WithSeparators(header_bytes) +
                           " bytes, more than the " + WithSeparators(kMaxSafetensorsHeaderBytes) +
                           " that the format allows: this is not a safetensors file");
  }
  if (header_bytes > limits.max_header_bytes) {
    return InvalidArgument(label + ": expected a header of at most " + WithSeparators(limits.max_header_bytes) +
                           " bytes, which is ample for an adapter; found " + WithSeparators(header_bytes) +
                           " bytes: this is not an adapter of the base model");
  }
  if (header_bytes > file_bytes - kLengthBytes) {
    return InvalidArgument(label + ": the header length says " + WithSeparators(header_bytes) + " bytes but only " +
                           WithSeparators(file_bytes - kLengthBytes) + " follow: the file is truncated");
  }
  return Ok{};
}

Result<std::vector<HeaderEntry>> ParseSafetensorsEntries(std::string_view json, std::uint64_t data_bytes,
                                                         const std::string& label, const TensorFileLimits& limits) {
  ASSIGN_OR_RETURN(std::vector<HeaderEntry> entries, ParseSafetensorsHeader(json, label, limits.max_tensors));
  for (const HeaderEntry& entry : entries) RETURN_IF_ERROR(CheckEntry(entry, label));
  RETURN_IF_ERROR(CheckTiling(entries, data_bytes, label));
  return entries;
}

std::int64_t StoredTensor::ElementCount() const { return static_cast<std::int64_t>(data.size() / DTypeSize(dtype)); }

std::string ShapeToString(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

Result<std::vector<StoredTensor>> TensorFile::Parse(std::span<const std::byte> bytes, const std::string& label) {
  ASSIGN_OR_RETURN(const Sections sections, SplitFile(bytes, label));
  ASSIGN_OR_RETURN(std::vector<HeaderEntry> entries,
                   ParseSafetensorsEntries(sections.header, sections.data.size(), label));
  std::vector<StoredTensor> tensors;
  tensors.reserve(entries.size());
  for (HeaderEntry& entry : entries) {
    const auto data =
        sections.data.subspan(static_cast<std::size_t>(entry.begin), static_cast<std::size_t>(entry.end - entry.begin));
    tensors.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape), data});
  }
  return tensors;
}

Status TensorFile::Add(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  ASSIGN_OR_RETURN(std::vector<StoredTensor> tensors, Parse(file.bytes(), path.string()));
  for (StoredTensor& tensor : tensors) {
    if (!index_.emplace(tensor.name, tensors_.size()).second) {
      return InvalidArgument(path.string() + ": tensor " + Quote(tensor.name) + " is also in another shard");
    }
    tensors_.push_back(std::move(tensor));
  }
  files_.push_back(std::move(file));
  return Ok{};
}

Result<TensorFile> TensorFile::Open(const std::filesystem::path& path) {
  TensorFile result;
  RETURN_IF_ERROR(result.Add(path));
  return result;
}

Result<TensorFile> TensorFile::OpenShards(const std::filesystem::path& directory) {
  const std::filesystem::path index_path = directory / kIndexFile;
  ASSIGN_OR_RETURN(const WeightMap shard_of, ReadIndex(index_path));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : shard_of) shards.insert(shard);
  TensorFile result;
  for (const std::string& shard : shards) {
    const std::size_t first = result.tensors_.size();
    if (Status status = result.Add(directory / shard); !status.ok()) {
      if (status.error().code != ErrorCode::kNotFound) return std::move(status).error();
      return NotFound(index_path.string() + " names the shard " + Quote(shard) + ", which is missing");
    }
    for (std::size_t i = first; i < result.tensors_.size(); ++i) {
      const auto promised = shard_of.find(result.tensors_[i].name);
      if (promised != shard_of.end() && promised->second != shard) {
        return InvalidArgument(index_path.string() + ": tensor " + Quote(promised->first) + " should be in " +
                               Quote(promised->second) + " but is in " + Quote(shard));
      }
    }
  }
  for (const auto& [tensor, shard] : shard_of) {
    if (result.Find(tensor) == nullptr) {
      return InvalidArgument(index_path.string() + ": tensor " + Quote(tensor) + " should be in " + Quote(shard) +
                             " but is not there");
    }
  }
  return result;
}

Result<TensorFile> TensorFile::OpenModelDirectory(const std::filesystem::path& directory) {
  if (Exists(directory / kSingleFile)) return Open(directory / kSingleFile);
  if (Exists(directory / kIndexFile)) return OpenShards(directory);
  return NoWeights(directory);
}

const StoredTensor* TensorFile::Find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::int64_t TensorFile::TotalBytes() const {
  std::int64_t total = 0;
  for (const MappedFile& file : files_) total += static_cast<std::int64_t>(file.bytes().size());
  return total;
}

}  // namespace loramux
