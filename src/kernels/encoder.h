// The attention of an encoder such as BERT, which is bidirectional.
#pragma once

#include <cstdint>

#include "kernels/kernel_context.h"

namespace loramux {

// out[row, head, :] = softmax(q . K / sqrt(head_dim)) V over all rows: one sequence, in which every row attends to
// every row. Heads of head_dim are adjacent.
struct EncoderAttentionArguments {
  ConstRows q, k, v;
  Rows out;
  std::int64_t rows = 0, num_heads = 0, head_dim = 0;
  float* workspace = nullptr;  // EncoderAttentionFloats(...) floats

  void Check() const {
    CHECK_GT(head_dim, 0);
    for (const ConstRows& x : {q, k, v, ConstRows(out)}) CHECK(rows <= 1 || x.stride >= num_heads * head_dim);
  }
};
LORAMUX_KERNEL(EncoderAttention)

// Size of EncoderAttention's workspace in floats.
inline std::int64_t EncoderAttentionFloats(std::int64_t rows, int threads) { return rows * threads; }

}  // namespace loramux
