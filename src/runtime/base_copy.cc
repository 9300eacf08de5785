#include "runtime/base_copy.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "memory/arena.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

// Bytes that are read at once.
constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

Status ReadFromDevice(const DeviceMatrix& matrix, Device& device, std::int64_t first, std::int64_t count, float* rows) {
  const std::int64_t elements = count * matrix.k();
  const std::size_t size = DTypeSize(matrix.dtype()), bytes = static_cast<std::size_t>(elements) * size;
  ASSIGN_OR_RETURN(const std::unique_ptr<Arena> staging,
                   device.AllocatePinned("rows of the output matrix", static_cast<std::int64_t>(bytes)));
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceStream> stream, device.CreateStream());
  stream->CopyToHost(staging->base(), matrix.data() + static_cast<std::size_t>(first * matrix.k()) * size, bytes);
  RETURN_IF_ERROR(stream->Synchronize());
  for (std::int64_t i = 0; i < elements; ++i) rows[i] = LoadAsF32(matrix.dtype(), staging->base(), i);
  return Ok{};
}

}  // namespace

OutputMatrix OutputMatrixOf(const Model& model) {
  const PackedMatrix& matrix = model.weights().lm_head;
  return {matrix.n(), matrix.k(), [&matrix](std::int64_t first, std::int64_t count, float* rows) -> Status {
            for (std::int64_t i = 0; i < count; ++i) matrix.UnpackRow(first + i, rows + i * matrix.k());
            return Ok{};
          }};
}

OutputMatrix OutputMatrixOf(const DeviceModel& model, Device& device) {
  const DeviceMatrix& matrix = model.weights().lm_head;
  return {matrix.n(), matrix.k(), [&matrix, &device](std::int64_t first, std::int64_t count, float* rows) {
            return ReadFromDevice(matrix, device, first, count, rows);
          }};
}

Status CheckBaseCopy(const OutputMatrix& matrix, const AdapterFile& file) {
  const TensorEntry* copy = file.lm_head_base_copy;
  if (copy == nullptr) return Ok{};
  const std::size_t row_bytes = static_cast<std::size_t>(matrix.k) * DTypeSize(copy->dtype);
  const std::int64_t at_once =
      std::max<std::int64_t>(1, kBlockBytes / (matrix.k * static_cast<std::int64_t>(sizeof(float))));
  std::vector<float> rows(static_cast<std::size_t>(at_once * matrix.k));
  std::vector<std::byte> stored(static_cast<std::size_t>(at_once) * row_bytes);
  for (std::int64_t first = 0; first < matrix.n; first += at_once) {
    const std::int64_t count = std::min(at_once, matrix.n - first), elements = count * matrix.k;
    RETURN_IF_ERROR(matrix.read(first, count, rows.data()));
    RETURN_IF_ERROR(file.tensors->Read(*copy, static_cast<std::uint64_t>(first) * row_bytes,
                                       std::span(stored).first(static_cast<std::size_t>(count) * row_bytes)));
    for (std::int64_t j = 0; j < elements; ++j) {
      // A copy in a narrower type than the base equals the rounded base.
      std::byte rounded[sizeof(float)];
      StoreFromF32(copy->dtype, rounded, 0, rows[static_cast<std::size_t>(j)]);
      if (LoadAsF32(copy->dtype, rounded, 0) == LoadAsF32(copy->dtype, stored.data(), j)) continue;
      return InvalidArgument(file.directory.string() + ": tensor " + copy->name + " differs from the base model's " +
                                 "output matrix at [" + std::to_string(first + j / matrix.k) + ", " +
                                 std::to_string(j % matrix.k) + "]: the adapter belongs to another base model",
                             "lora_path");
    }
  }
  return Ok{};
}

}  // namespace loramux
