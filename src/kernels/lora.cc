#include "kernels/lora.h"

#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/own_rows.h"
#include "kernels/reference/kernels.h"

namespace loramux {
namespace {

void CheckSegments(std::span<const LoraSegment> segments) {
  std::int64_t previous_end = 0;
  for (const LoraSegment& segment : segments) {
    CHECK_GE(segment.begin, previous_end);
    CHECK_GE(segment.end, segment.begin);
    CHECK_GE(segment.weights.rank, 0);
    CHECK(segment.weights.rank == 0 || (segment.weights.a_rows != nullptr && segment.weights.b_rows != nullptr &&
                                        IsAdapterRowDType(segment.weights.dtype)));
    CHECK((segment.weights.gains == nullptr) == (segment.weights.shifts == nullptr));
    previous_end = segment.end;
  }
}

}  // namespace

void LoraMatMul(const KernelContext& context, LoraVariant variant, std::span<const LoraProjection> projections,
                const float* x, std::int64_t x_stride, std::int64_t in, float* workspace) {
  CHECK(context.pool != nullptr);
  CHECK_GT(in, 0);
  for (const LoraProjection& projection : projections) {
    CheckSegments(projection.segments);
    CHECK_GT(projection.out, 0);
  }
  const auto implementation = context.backend == Backend::kReference ? reference::LoraMatMul : cpu::LoraMatMul;
  implementation(context, variant, projections, x, x_stride, in, workspace);
}

void MatMulWithLora(const KernelContext& context, LoraVariant variant, std::span<const LoraProjection> projections,
                    const float* x, std::int64_t x_stride, std::int64_t m, const PackedMatrix& w, const float* bias,
                    float* y, std::int64_t y_stride, float* workspace) {
  CHECK(context.pool != nullptr);
  CHECK_GT(w.n(), 0);
  CHECK_GT(m, 0);
  CHECK(m == 1 || (x_stride >= w.k() && y_stride >= w.n()));
  for (const LoraProjection& projection : projections) {
    CheckSegments(projection.segments);
    CHECK(projection.segments.empty() || projection.segments.back().end <= m);
    CHECK_GT(projection.out, 0);
    CHECK(projection.y >= y && projection.y + projection.out <= y + w.n());
    CHECK(m == 1 || projection.y_stride == y_stride);
  }
  const auto implementation = context.backend == Backend::kReference ? reference::MatMulWithLora : cpu::MatMulWithLora;
  implementation(context, variant, projections, x, x_stride, m, w, bias, y, y_stride, workspace);
}

void OwnProducts(const KernelContext& context, std::span<const OwnSegment> segments, const float* x,
                 std::int64_t x_stride, std::int64_t in, float* y, std::int64_t y_stride) {
  CHECK(context.pool != nullptr);
  CHECK_GT(in, 0);
  for (const OwnSegment& segment : segments) {
    CHECK_GE(segment.end, segment.begin);
    CHECK(segment.own.count == 0 || IsWeightDType(segment.own.dtype));
  }
  const auto implementation = context.backend == Backend::kReference ? reference::OwnProducts : cpu::OwnProducts;
  implementation(context, segments, x, x_stride, in, y, y_stride);
}

void LoraMatMul(const KernelContext& context, LoraVariant variant, std::span<const LoraSegment> segments,
                const float* x, std::int64_t x_stride, std::int64_t in, float* y, std::int64_t y_stride,
                std::int64_t out, float* workspace) {
  const LoraProjection projection = {segments, y, y_stride, out};
  LoraMatMul(context, variant, std::span(&projection, 1), x, x_stride, in, workspace);
}

}  // namespace loramux
