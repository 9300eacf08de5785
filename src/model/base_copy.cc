#include "model/base_copy.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
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
  constexpr float kRounding = 1.02f;  // most that rounding scales to float16 adds
  // The largest steps are a third of the largest value.
  if (matrix.format == WeightFormat::kMx4) return kRounding * std::max(std::fabs(*low), std::fabs(*high)) / 3;
  // Half a step of three bits of mantissa, or of the least exponent.
  if (matrix.format == WeightFormat::kF8)
    return std::max(std::fabs(row[t]) / 16, std::max(std::fabs(*low), std::fabs(*high)) / (448 * 1024));
  if (matrix.format == WeightFormat::kQ4) return kRounding * (*high - *low) / 15;
  return kRounding * std::max(std::fabs(*low), std::fabs(*high)) / 127 / 2;
}

// Calls fn(i, row, stored) with each row of a matrix of the base, and the same row as the adapter's tensor has it.
// Error: of reads, or fn's.
template <typename F>
Status ForEachRow(const BaseMatrix& matrix, const TensorEntry& tensor, const AdapterFile& file, const F& fn) {
  const std::size_t row_bytes = static_cast<std::size_t>(matrix.k) * DTypeSize(tensor.dtype);
  const std::int64_t at_once =
      std::max<std::int64_t>(1, kBlockBytes / (matrix.k * static_cast<std::int64_t>(sizeof(float))));
  std::vector<float> rows(static_cast<std::size_t>(at_once * matrix.k));
  std::vector<std::byte> stored(static_cast<std::size_t>(at_once) * row_bytes);
  for (std::int64_t first = 0; first < matrix.n; first += at_once) {
    const std::int64_t count = std::min(at_once, matrix.n - first);
    RETURN_IF_ERROR(matrix.read(first, count, rows.data()));
    RETURN_IF_ERROR(file.tensors->Read(tensor, static_cast<std::uint64_t>(first) * row_bytes,
                                       std::span(stored).first(static_cast<std::size_t>(count) * row_bytes)));
    for (std::int64_t i = 0; i < count; ++i) {
      RETURN_IF_ERROR(
          fn(first + i, rows.data() + i * matrix.k, stored.data() + static_cast<std::size_t>(i) * row_bytes));
    }
  }
  return Ok{};
}

// The first element at which a stored row is not the base's.
std::optional<std::int64_t> FirstDifference(const BaseMatrix& matrix, const float* row, DType dtype,
                                            const std::byte* stored) {
  for (std::int64_t t = 0; t < matrix.k; ++t) {
    const float saved = LoadAsF32(dtype, stored, t);
    // A copy in a narrower type than the base equals the rounded base.
    std::byte rounded[sizeof(float)];
    StoreFromF32(dtype, rounded, 0, row[t]);
    if (LoadAsF32(dtype, rounded, 0) == saved) continue;
    if (!(std::fabs(row[t] - saved) <= Tolerance(matrix, row, t))) return t;
  }
  return std::nullopt;
}

// `name` is that of the matrix in messages.
Status CheckCopy(const BaseMatrix& matrix, const char* name, const TensorEntry& copy, const AdapterFile& file) {
  return ForEachRow(matrix, copy, file, [&](std::int64_t row, const float* base, const std::byte* stored) -> Status {
    const auto at = FirstDifference(matrix, base, copy.dtype, stored);
    if (!at) return Ok{};
    return InvalidArgument(file.directory.string() + ": tensor " + copy.name + " differs from the base model's " +
                               name + " at [" + std::to_string(row) + ", " + std::to_string(*at) +
                               "]: the adapter belongs to another base model, or its training changed this matrix "
                               "without modules_to_save, which only a merged model can hold",
                           "lora_path");
  });
}

// Two tensors of the file that must be the same.
Status CheckSame(const TensorEntry& copy, const TensorEntry& of, const AdapterFile& file) {
  bool same = copy.dtype == of.dtype && copy.shape == of.shape;
  std::vector<std::byte> a, b;
  for (std::uint64_t first = 0; same && first < of.bytes; first += kBlockBytes) {
    a.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kBlockBytes, of.bytes - first)));
    b.resize(a.size());
    RETURN_IF_ERROR(file.tensors->Read(copy, first, a));
    RETURN_IF_ERROR(file.tensors->Read(of, first, b));
    same = a == b;
  }
  if (same) return Ok{};
  return InvalidArgument(file.directory.string() + ": tensor " + copy.name + " differs from " + of.name +
                             ", of which PEFT saves it as a copy: one of the two is wrong",
                         "lora_path");
}

}  // namespace

Status CheckBaseCopies(const BaseMatrices& matrices, const AdapterFile& file) {
  if (file.lm_head_base_copy != nullptr) {
    RETURN_IF_ERROR(CheckCopy(matrices.output, "output matrix", *file.lm_head_base_copy, file));
  }
  if (file.embedding_base_copy != nullptr) {
    RETURN_IF_ERROR(CheckCopy(matrices.embedding, "embedding", *file.embedding_base_copy, file));
  }
  for (const auto& [copy, of] : file.own_copies) RETURN_IF_ERROR(CheckSame(*copy, *of, file));
  return Ok{};
}

Status SelectOwnRows(const BaseMatrices& matrices, AdapterFile& file) {
  for (OwnPart& part : file.own) {
    if (!part.whole) continue;
    const BaseMatrix& matrix = part.kind == OwnKind::kEmbedding ? matrices.embedding : matrices.output;
    part.rows.clear();
    RETURN_IF_ERROR(ForEachRow(matrix, *part.tensor, file,
                               [&](std::int64_t row, const float* base, const std::byte* stored) -> Status {
                                 if (FirstDifference(matrix, base, part.tensor->dtype, stored)) {
                                   part.rows.push_back({static_cast<TokenId>(row), static_cast<std::int32_t>(row)});
                                 }
                                 return Ok{};
                               }));
    for (std::int64_t row = matrix.n; row < part.tensor->shape[0]; ++row) {  // rows of tokens that only the adapter has
      part.rows.push_back({static_cast<TokenId>(row), static_cast<std::int32_t>(row)});
    }
  }
  return Ok{};
}

}  // namespace loramux
