#include "kernels/reference/kernels.h"
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

void LoraMatMul(const KernelContext&, LoraVariant, std::span<const LoraProjection> projections, const float* x,
                std::int64_t x_stride, std::int64_t in, float*) {
  for (const LoraProjection& projection : projections) {
    for (const LoraSegment& segment : projection.segments) {
      for (std::int64_t i = segment.begin; i < segment.end; ++i) {
        AddOneToken(segment.weights, x + i * x_stride, in, projection.y + i * projection.y_stride, projection.out);
      }
    }
  }
}

void MatMulWithLora(const KernelContext& context, LoraVariant variant, std::span<const LoraProjection> projections,
                    const float* x, std::int64_t x_stride, std::int64_t m, const PackedMatrix& w, const float* bias,
                    float* y, std::int64_t y_stride, float* workspace) {
  loramux::MatMul(context, x, x_stride, m, w, bias, y, y_stride);
  reference::LoraMatMul(context, variant, projections, x, x_stride, w.k(), workspace);
}

void OwnProducts(const KernelContext&, std::span<const OwnSegment> segments, const float* x, std::int64_t x_stride,
                 std::int64_t in, float* y, std::int64_t y_stride) {
  for (const OwnSegment& segment : segments) {
    for (std::int64_t i = segment.begin; i < segment.end; ++i) {
      for (std::int64_t j = 0; j < segment.own.count; ++j) {
        float dot = 0;
        for (std::int64_t t = 0; t < in; ++t)
          dot += x[i * x_stride + t] * LoadAsF32(segment.own.dtype, segment.own.rows[j], t);
        y[i * y_stride + segment.own.tokens[j]] = dot;
      }
    }
  }
}

}  // namespace loramux::reference
