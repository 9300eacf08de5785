#include "formats/tensor_reader.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/message.h"
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

constexpr std::size_t kQ8Block = 32, kQ8BlockBytes = 34;  // a float16 and 32 integers

float FloatOfHalf(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) return sign * (fraction == 0 ? std::numeric_limits<float>::infinity() : std::nanf(""));
  return sign * (exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                               : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25));
}

std::vector<std::byte> FloatsOfQ8(std::span<const std::byte> blocks) {
  const std::size_t count = blocks.size() / kQ8BlockBytes;
  std::vector<std::byte> floats(count * kQ8Block * sizeof(float));
  for (std::size_t block = 0; block < count; ++block) {
    const std::byte* const from = blocks.data() + block * kQ8BlockBytes;
    std::uint16_t scale = 0;
    std::memcpy(&scale, from, sizeof(scale));
    for (std::size_t i = 0; i < kQ8Block; ++i) {
      const float value = FloatOfHalf(scale) * static_cast<float>(static_cast<std::int8_t>(from[sizeof(scale) + i]));
      std::memcpy(floats.data() + (block * kQ8Block + i) * sizeof(float), &value, sizeof(value));
    }
  }
  return floats;
}

// The elements as float32, times `factor`.
std::vector<std::byte> ScaledFloats(DType dtype, std::span<const std::byte> data, float factor) {
  const std::size_t size = DTypeSize(dtype), count = data.size() / size;
  std::vector<std::byte> floats(count * sizeof(float));
  for (std::size_t i = 0; i < count; ++i) {
    float value = 0;
    if (dtype == DType::kF32) {
      std::memcpy(&value, data.data() + i * size, sizeof(value));
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, data.data() + i * size, sizeof(bits));
      value = dtype == DType::kF16 ? FloatOfHalf(bits) : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }
    value *= factor;
    std::memcpy(floats.data() + i * sizeof(value), &value, sizeof(value));
  }
  return floats;
}

}  // namespace

Result<TensorReader> TensorReader::Open(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(RegularFile file, RegularFile::Open(path));
  return Open(std::move(file), path);
}

Result<TensorReader> TensorReader::Open(RegularFile file, const std::filesystem::path& path,
                                        const TensorFileLimits& limits) {
  TensorReader reader;
  RETURN_IF_ERROR(reader.Add(std::move(file), path, limits));
  return reader;
}

Result<TensorReader> TensorReader::Of(RegularFile file, const std::filesystem::path& path,
                                      std::vector<TensorEntry> tensors, const TensorFileLimits& limits) {
  RETURN_IF_ERROR(CheckHoles(file, limits, path.string()));
  TensorReader reader;
  reader.files_.push_back({std::make_shared<const RegularFile>(std::move(file)), path});
  reader.tensors_ = std::move(tensors);
  return reader;
}

TensorReader TensorReader::Sharing(std::span<const TensorReader* const> readers, const std::filesystem::path& path,
                                   std::vector<std::size_t>& files) {
  TensorReader shared;
  for (const TensorReader* const reader : readers) {
    files.push_back(shared.files_.size());
    for (const File& file : reader->files_) shared.files_.push_back({file.file, path});
  }
  CHECK(!shared.files_.empty());
  return shared;
}

Status TensorReader::Add(RegularFile file, const std::filesystem::path& path, const TensorFileLimits& limits) {
  const std::string label = path.string();
  std::uint64_t header_bytes = 0;
  const std::uint64_t file_bytes = file.size();
  if (file_bytes >= sizeof(header_bytes)) {
    RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(&header_bytes, 1)), path));
  }
  RETURN_IF_ERROR(CheckSafetensorsHeaderLength(header_bytes, file_bytes, label, limits));
  RETURN_IF_ERROR(CheckHoles(file, limits, label));
  std::string header(static_cast<std::size_t>(header_bytes), '\0');
  RETURN_IF_ERROR(file.ReadAt(sizeof(header_bytes), std::as_writable_bytes(std::span(header)), path));
  const std::uint64_t data_begin = sizeof(header_bytes) + header_bytes;
  ASSIGN_OR_RETURN(std::vector<HeaderEntry> entries,
                   ParseSafetensorsEntries(header, file_bytes - data_begin, label, limits));
  tensors_.reserve(tensors_.size() + entries.size());
  for (HeaderEntry& entry : entries) {
    tensors_.push_back({.name = std::move(entry.name),
                        .dtype = entry.dtype,
                        .shape = std::move(entry.shape),
                        .offset = data_begin + entry.begin,
                        .bytes = entry.end - entry.begin,
                        .file = files_.size()});
  }
  files_.push_back({std::make_shared<const RegularFile>(std::move(file)), path});
  return Ok{};
}

Status TensorReader::Read(const TensorEntry& tensor, std::vector<std::byte>& buffer, Stored* last) const {
  buffer.resize(static_cast<std::size_t>(tensor.bytes));
  if (tensor.view != nullptr && last != nullptr) return ReadView(tensor, buffer, *last);
  return Read(tensor, 0, buffer);
}

Status TensorReader::Read(const TensorEntry& tensor, std::uint64_t first, std::span<std::byte> out) const {
  CHECK_LE(first + out.size(), tensor.bytes);
  const File& file = files_[tensor.file];
  if (tensor.view == nullptr) return file.file->ReadAt(tensor.offset + first, out, file.path);
  Stored stored;
  if (first == 0 && out.size() == tensor.bytes) return ReadView(tensor, out, stored);
  std::vector<std::byte> whole(static_cast<std::size_t>(tensor.bytes));
  RETURN_IF_ERROR(ReadView(tensor, whole, stored));
  std::memcpy(out.data(), whole.data() + first, out.size());
  return Ok{};
}

Status TensorReader::ReadView(const TensorEntry& tensor, std::span<std::byte> out, Stored& last) const {
  const TensorView& view = *tensor.view;
  if (!view.joined.empty()) return ReadJoined(tensor, out);
  const File& file = files_[tensor.file];
  const std::size_t size = DTypeSize(tensor.dtype);
  const auto rows = static_cast<std::size_t>(view.rows), columns = static_cast<std::size_t>(view.columns);
  if (last.bytes.empty() || last.offset != tensor.offset || last.file != tensor.file) {
    last = {{}, tensor.offset, tensor.file};
    std::vector<std::byte> stored(view.q8_0 ? rows * columns / kQ8Block * kQ8BlockBytes : rows * columns * size);
    RETURN_IF_ERROR(file.file->ReadAt(tensor.offset, stored, file.path));
    last.bytes = view.q8_0 ? FloatsOfQ8(stored) : std::move(stored);
  }
  const std::vector<std::byte>& stored = last.bytes;
  CHECK_EQ(stored.size(), rows * columns * size);
  const std::size_t matrix_rows = view.transposed ? columns : rows, width = view.transposed ? rows : columns;
  const std::size_t count = view.picked == nullptr ? matrix_rows : view.picked->size();
  const auto begin = static_cast<std::size_t>(view.first_column), step = static_cast<std::size_t>(view.column_step);
  const std::size_t read = view.columns_read == 0 ? width : static_cast<std::size_t>(view.columns_read);
  CHECK_EQ(count * read * size, out.size());
  CHECK(read == 0 || begin + (read - 1) * step < width);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t row = view.picked == nullptr ? i : static_cast<std::size_t>((*view.picked)[i]);
    CHECK_LT(row, matrix_rows);
    std::byte* const to = out.data() + i * read * size;
    if (!view.transposed && view.columns_read == 0) {
      std::memcpy(to, stored.data() + row * width * size, width * size);
      continue;
    }
    for (std::size_t j = 0; j < read; ++j) {
      const std::size_t column = begin + j * step;
      const std::size_t at = view.transposed ? column * matrix_rows + row : row * width + column;
      std::memcpy(to + j * size, stored.data() + at * size, size);
    }
  }
  return Ok{};
}

Status TensorReader::ReadJoined(const TensorEntry& tensor, std::span<std::byte> out) const {
  const TensorView& view = *tensor.view;
  CHECK_EQ(tensor.shape.size(), 2u);
  const std::size_t size = DTypeSize(tensor.dtype), row_bytes = static_cast<std::size_t>(tensor.shape[1]) * size;
  CHECK_EQ(out.size(), static_cast<std::size_t>(tensor.shape[0]) * row_bytes);
  std::vector<std::byte> data;
  std::size_t first = 0;  // byte of `out`, of the part's first element
  for (const TensorPart& part : view.joined) {
    RETURN_IF_ERROR(Read(part.tensor, data));
    if (part.tensor.dtype != tensor.dtype || part.factor != 1)
      data = ScaledFloats(part.tensor.dtype, data, part.factor);
    if (!view.beside) {
      std::memcpy(out.data() + first, data.data(), data.size());
      first += data.size();
      continue;
    }
    const std::size_t width = static_cast<std::size_t>(part.tensor.shape[1]) * size;
    for (std::size_t row = 0; row < static_cast<std::size_t>(tensor.shape[0]); ++row)
      std::memcpy(out.data() + row * row_bytes + first, data.data() + row * width, width);
    first += width;
  }
  return Ok{};
}

Status TensorReader::ChangeEach(const std::function<Status(TensorEntry&)>& change) {
  for (TensorEntry& tensor : tensors_) RETURN_IF_ERROR(change(tensor));
  return Ok{};
}

}  // namespace loramux
