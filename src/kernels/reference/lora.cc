#include "kernels/lora.h"

#include "kernels/own_rows.h"
#include "tensor/half_float.h"

namespace loramux::reference {
namespace {

// One token: s = A x row by row, y += (scale * factors[j] * s[j]) * B[:, j] in ascending j, and y = gains * y + shifts.
void AddOneToken(const LoraWeights& weights, const float* x, std::int64_t in, float* y, std::int64_t out) {
  for (std::int32_t j = 0; j < weights.rank; ++j) {
    float dot = 0;
    for (std::int64_t t = 0; t < in; ++t) dot += x[t] * LoadAsF32(weights.dtype, weights.a_rows[j], t);
    const float coefficient = weights.Factor(j) * dot;
    for (std::int64_t o = 0; o < out; ++o) y[o] += coefficient * LoadAsF32(weights.dtype, weights.b_rows[j], o);
  }
  for (std::int64_t o = 0; weights.gains != nullptr && o < out; ++o) y[o] = weights.gains[o] * y[o] + weights.shifts[o];
}

}  // namespace

void LoraMatMul(const KernelContext&, const LoraMatMulArguments& a) {
  for (const LoraProjection& projection : a.projections) {
    for (const LoraSegment& segment : projection.segments) {
      for (std::int64_t i = segment.begin; i < segment.end; ++i) {
        AddOneToken(segment.weights, a.x[i], a.in, projection.y[i], projection.out);
      }
    }
  }
}

void MatMulWithLora(const KernelContext& context, const MatMulWithLoraArguments& a) {
  reference::MatMul(context, a.product);
  reference::LoraMatMul(context, a.Lora());
}

void OwnProducts(const KernelContext&, const OwnProductsArguments& a) {
  for (const OwnSegment& segment : a.segments) {
    for (std::int64_t i = segment.begin; i < segment.end; ++i) {
      for (std::int64_t j = 0; j < segment.own.count; ++j) {
        float dot = 0;
        for (std::int64_t t = 0; t < a.in; ++t) {
          dot += a.x[i][t] * LoadAsF32(segment.own.dtype, segment.own.rows[j], t);
        }
        a.y[i][segment.own.tokens[j]] = dot;
      }
    }
  }
}

}  // namespace loramux::reference
