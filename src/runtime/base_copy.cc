#include "runtime/base_copy.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tensor/half_float.h"
#include "tensor/weight_format.h"

namespace loramux {
namespace {

// Bytes that are read at once.
constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

// By how much quantising may have changed the element `t` of a row: half a step of its group, or a whole one where the
// search for the least error may have clipped it. 0: not at all.
float Tolerance(const BaseMatrix& matrix, const float* row, std::int64_t t) {
  if (!IsQuantised(matrix.format)) return 0;
  const std::int64_t begin = t / kWeightGroup * kWeightGroup, end = std::min(begin + kWeightGroup, matrix.k);
  const auto [low, high] = std::minmax_element(row + begin, row + end);
  constexpr float kRounding = 1.02f;  // of scales to float16
  if (matrix.format == WeightFormat::kQ4) return kRounding * (*high - *low) / 15;
  return kRounding * std::max(std::fabs(*low), std::fabs(*high)) / 127 / 2;
}

// `name` is that of the matrix in messages.
Status CheckCopy(const BaseMatrix& matrix, const char* name, const TensorEntry& copy, const AdapterFile& file) {
  const std::size_t row_bytes = static_cast<std::size_t>(matrix.k) * DTypeSize(copy.dtype);
  const std::int64_t at_once =
      std::max<std::int64_t>(1, kBlockBytes / (matrix.k * static_cast<std::int64_t>(sizeof(float))));
  std::vector<float> rows(static_cast<std::size_t>(at_once * matrix.k));
  std::vector<std::byte> stored(static_cast<std::size_t>(at_once) * row_bytes);
  for (std::int64_t first = 0; first < matrix.n; first += at_once) {
    const std::int64_t count = std::min(at_once, matrix.n - first), elements = count * matrix.k;
    RETURN_IF_ERROR(matrix.read(first, count, rows.data()));
    RETURN_IF_ERROR(file.tensors->Read(copy, static_cast<std::uint64_t>(first) * row_bytes,
                                       std::span(stored).first(static_cast<std::size_t>(count) * row_bytes)));
    for (std::int64_t j = 0; j < elements; ++j) {
      const float saved = LoadAsF32(copy.dtype, stored.data(), j);
      // A copy in a narrower type than the base equals the rounded base.
      std::byte rounded[sizeof(float)];
      StoreFromF32(copy.dtype, rounded, 0, rows[static_cast<std::size_t>(j)]);
      if (LoadAsF32(copy.dtype, rounded, 0) == saved) continue;
      const float* const row = rows.data() + j / matrix.k * matrix.k;
      if (std::fabs(rows[static_cast<std::size_t>(j)] - saved) <= Tolerance(matrix, row, j % matrix.k)) continue;
      return InvalidArgument(file.directory.string() + ": tensor " + copy.name + " differs from the base model's " +
                                 name + " at [" + std::to_string(first + j / matrix.k) + ", " +
                                 std::to_string(j % matrix.k) +
                                 "]: the adapter belongs to another base model, or its training changed this matrix, "
                                 "which only a merged model can hold",
                             "lora_path");
    }
  }
  return Ok{};
}

}  // namespace

Status CheckBaseCopies(const BaseMatrices& matrices, const AdapterFile& file) {
  if (file.lm_head_base_copy != nullptr) {
    RETURN_IF_ERROR(CheckCopy(matrices.output, "output matrix", *file.lm_head_base_copy, file));
  }
  if (file.embedding_base_copy == nullptr) return Ok{};
  return CheckCopy(matrices.embedding, "embedding", *file.embedding_base_copy, file);
}

}  // namespace loramux
