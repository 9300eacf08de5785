#include "formats/tensor_reader.h"

#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "formats/message.h"
#include "formats/safetensors_header.h"

namespace loramux {
namespace {

Status CheckHoles(const RegularFile& file, const TensorFileLimits& limits, const std::string& label) {
  if (file.size() <= limits.max_hole_bytes) return Ok{};
  const std::uint64_t holes = file.HoleBytes();
  if (holes <= limits.max_hole_bytes) return Ok{};
  return InvalidArgument(label + ": expected at most " + WithSeparators(limits.max_hole_bytes) +
                         " bytes without storage, found " + WithSeparators(holes) + " of " +
                         WithSeparators(file.size()) +
                         ": the file is sparse; if its zeros are meant, copy it with `cp --sparse=never`");
}

}  // namespace

Result<TensorReader> TensorReader::Open(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(RegularFile file, RegularFile::Open(path));
  return Open(std::move(file), path);
}

Result<TensorReader> TensorReader::Open(RegularFile file, const std::filesystem::path& path,
                                        const TensorFileLimits& limits) {
  const std::string label = path.string();
  TensorReader reader(std::move(file), path);
  std::uint64_t header_bytes = 0;
  const std::uint64_t file_bytes = reader.file_.size();
  if (file_bytes >= sizeof(header_bytes)) {
    RETURN_IF_ERROR(reader.file_.ReadAt(0, std::as_writable_bytes(std::span(&header_bytes, 1)), path));
  }
  RETURN_IF_ERROR(CheckSafetensorsHeaderLength(header_bytes, file_bytes, label, limits));
  RETURN_IF_ERROR(CheckHoles(reader.file_, limits, label));
  std::string header(static_cast<std::size_t>(header_bytes), '\0');
  RETURN_IF_ERROR(reader.file_.ReadAt(sizeof(header_bytes), std::as_writable_bytes(std::span(header)), path));
  const std::uint64_t data_begin = sizeof(header_bytes) + header_bytes;
  ASSIGN_OR_RETURN(std::vector<HeaderEntry> entries,
                   ParseSafetensorsEntries(header, file_bytes - data_begin, label, limits));
  reader.tensors_.reserve(entries.size());
  for (HeaderEntry& entry : entries) {
    reader.tensors_.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape), data_begin + entry.begin,
                               entry.end - entry.begin});
  }
  return reader;
}

Status TensorReader::Read(const TensorEntry& tensor, std::vector<std::byte>& buffer) const {
  buffer.resize(static_cast<std::size_t>(tensor.bytes));
  return Read(tensor, 0, buffer);
}

Status TensorReader::Read(const TensorEntry& tensor, std::uint64_t first, std::span<std::byte> out) const {
  CHECK_LE(first + out.size(), tensor.bytes);
  return file_.ReadAt(tensor.offset + first, out, path_);
}

}  // namespace loramux
