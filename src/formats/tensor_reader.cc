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
    reader.tensors_.push_back({.name = std::move(entry.name),
                               .dtype = entry.dtype,
                               .shape = std::move(entry.shape),
                               .offset = data_begin + entry.begin,
                               .bytes = entry.end - entry.begin});
  }
  return reader;
}

Status TensorReader::Read(const TensorEntry& tensor, std::vector<std::byte>& buffer) const {
  buffer.resize(static_cast<std::size_t>(tensor.bytes));
  return Read(tensor, 0, buffer);
}

Status TensorReader::Read(const TensorEntry& tensor, std::uint64_t first, std::span<std::byte> out) const {
  CHECK_LE(first + out.size(), tensor.bytes);
  if (tensor.view == nullptr) return file_.ReadAt(tensor.offset + first, out, path_);
  if (first == 0 && out.size() == tensor.bytes) return ReadView(tensor, out);
  std::vector<std::byte> whole(static_cast<std::size_t>(tensor.bytes));
  RETURN_IF_ERROR(ReadView(tensor, whole));
  std::memcpy(out.data(), whole.data() + first, out.size());
  return Ok{};
}

Status TensorReader::ReadView(const TensorEntry& tensor, std::span<std::byte> out) const {
  const TensorView& view = *tensor.view;
  const std::size_t size = DTypeSize(tensor.dtype);
  const auto rows = static_cast<std::size_t>(view.rows), columns = static_cast<std::size_t>(view.columns);
  CHECK_EQ(rows * columns * size, out.size());
  if (!view.transposed) return file_.ReadAt(tensor.offset, out, path_);
  std::vector<std::byte> stored(out.size());
  RETURN_IF_ERROR(file_.ReadAt(tensor.offset, stored, path_));
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      std::memcpy(out.data() + (j * rows + i) * size, stored.data() + (i * columns + j) * size, size);
    }
  }
  return Ok{};
}

Status TensorReader::ChangeEach(const std::function<Status(TensorEntry&)>& change) {
  for (TensorEntry& tensor : tensors_) RETURN_IF_ERROR(change(tensor));
  return Ok{};
}

}  // namespace loramux
