// Rows of the embedding and of the output matrix that adapters bring in place of the base model's, and LoRA of the
// embedding, for the rows of a mixed batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "formats/dtype.h"
#include "kernels/kernel_context.h"
#include "kernels/lora.h"

namespace loramux {

// The rows that one adapter brings of one matrix. They may lie anywhere (pages of the pool); each is contiguous and
// 64-byte aligned. Not owning.
struct OwnRows {
  std::int64_t count = 0;
  DType dtype = DType::kBF16;              // f32, bf16 or f16
  const TokenId* tokens = nullptr;         // ascending
  const std::byte* const* rows = nullptr;  // a row for each of these tokens

  // The row of a token; null: it is the base's.
  const std::byte* Find(TokenId token) const {
    const TokenId* const at = std::lower_bound(tokens, tokens + count, token);
    return at == tokens + count || *at != token ? nullptr : rows[at - tokens];
  }
};

// LoRA of the embedding. The input of `weights` is the vocabulary: a_rows have an element for each of `tokens` tokens,
// b_rows one for each element of a hidden state.
struct EmbeddingLora {
  std::int64_t tokens = 0;  // the base model's and those that the adapter adds
  LoraWeights weights;
};

// row[t] += sum over j ascending of (scale * factors[j] * A[j, token]) * B[t, j], then row[t] = gains[t] * row[t] where
// there are vectors, for `width` elements. Does nothing for a token beyond those of `lora`.
void AddEmbeddingLora(const EmbeddingLora& lora, TokenId token, std::int64_t width, float* row);

// The rows [begin, end) of the batch whose adapter brings rows of the output matrix. Segments are disjoint.
struct OwnSegment {
  std::int64_t begin = 0, end = 0;
  OwnRows own;
};

// y[i, token] = dot(x[i, :], row) for each row that the adapter of i brings, in place of the base model's product. A
// result is bitwise independent of the rest of the batch: the order of a dot product depends on `in` alone.
struct OwnProductsArguments {
  std::span<const OwnSegment> segments;
  ConstRows x;  // rows of `in` floats
  std::int64_t in = 0;
  Rows y;  // with a column for each token

  void Check() const;
};
LORAMUX_KERNEL(OwnProducts)

}  // namespace loramux
