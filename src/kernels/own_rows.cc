#include "kernels/own_rows.h"

#include "tensor/half_float.h"

namespace loramux {
namespace {

// row += weight * b, for elements of one type.
template <DType kDType>
void AddScaled(const std::byte* b, float weight, std::int64_t width, float* row) {
  for (std::int64_t t = 0; t < width; ++t) row[t] += weight * LoadAsF32(kDType, b, t);
}

void AddScaled(DType dtype, const std::byte* b, float weight, std::int64_t width, float* row) {
  if (dtype == DType::kF32) return AddScaled<DType::kF32>(b, weight, width, row);
  if (dtype == DType::kBF16) return AddScaled<DType::kBF16>(b, weight, width, row);
  if (dtype == DType::kF16) return AddScaled<DType::kF16>(b, weight, width, row);
  if (dtype == DType::kF8E4M3) return AddScaled<DType::kF8E4M3>(b, weight, width, row);
  return AddScaled<DType::kI8>(b, weight, width, row);
}

}  // namespace

void AddEmbeddingLora(const EmbeddingLora& lora, TokenId token, std::int64_t width, float* row) {
  const LoraWeights& weights = lora.weights;
  if (token >= lora.tokens) return;
  for (std::int32_t j = 0; j < weights.rank; ++j) {
    const float factor = weights.Factor(j) * LoadAsF32(weights.dtype, weights.a_rows[j], token);
    AddScaled(weights.dtype, weights.b_rows[j], factor, width, row);
  }
  if (weights.gains == nullptr) return;
  for (std::int64_t t = 0; t < width; ++t) row[t] *= weights.gains[t];
}

}  // namespace loramux
