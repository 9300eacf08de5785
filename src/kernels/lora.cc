#include "kernels/lora.h"

#include "base/check.h"
#include "kernels/own_rows.h"

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

void LoraMatMulArguments::Check() const {
  CHECK_GT(in, 0);
  for (const LoraProjection& projection : projections) {
    CheckSegments(projection.segments);
    CHECK_GT(projection.out, 0);
  }
}

void MatMulWithLoraArguments::Check() const {
  product.Check();
  Lora().Check();
  CHECK_GT(product.rows, 0);
  for (const LoraProjection& projection : projections) {
    CHECK(projection.segments.empty() || projection.segments.back().end <= product.rows);
    CHECK(projection.y.data >= product.y.data && projection.y.data + projection.out <= product.y.data + product.w.n());
    CHECK(product.rows == 1 || projection.y.stride == product.y.stride);
  }
}

void OwnProductsArguments::Check() const {
  CHECK_GT(in, 0);
  for (const OwnSegment& segment : segments) {
    CHECK_GE(segment.end, segment.begin);
    CHECK(segment.own.count == 0 || IsWeightDType(segment.own.dtype));
  }
}

}  // namespace loramux
