// Rows of the embedding and of the output matrix that adapters bring in place of the base model's, for the rows of a
// mixed batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "formats/dtype.h"
#include "kernels/kernel_context.h"

namespace loramux {

// The rows that one adapter brings of one matrix. They may lie anywhere (pages of the pool); each is contiguous and
// 64-byte aligned. Not owning.
struct OwnRows {
  std::int64_t count = 0;
  DType dtype = DType::kBF16;              // f32, bf16 or f16
  const TokenId* tokens = nullptr;         // ascending
  const std::byte* const* rows = nullptr;  // of these tokens

  // The row of a token; null: it is the base's.
  const std::byte* Find(TokenId token) const {
    const TokenId* const at = std::lower_bound(tokens, tokens + count, token);
    return at == tokens + count || *at != token ? nullptr : rows[at - tokens];
  }
};

// The rows [begin, end) of the batch whose adapter brings rows of the output matrix. Segments are disjoint.
struct OwnSegment {
  std::int64_t begin = 0, end = 0;
  OwnRows own;
};

// y[i, token] = dot(x[i, :], row) for each row that the adapter of i brings, in place of the base model's product. x:
// rows of `in` floats, x_stride apart; y: rows y_stride apart, with a column for each token. A result is bitwise
// independent of the rest of the batch: the order of a dot product depends on `in` alone.
void OwnProducts(const KernelContext& context, std::span<const OwnSegment> segments, const float* x,
                 std::int64_t x_stride, std::int64_t in, float* y, std::int64_t y_stride);

}  // namespace loramux
