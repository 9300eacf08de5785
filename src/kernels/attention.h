// Causal attention over paged keys and values, and storing new keys and values in pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernel_context.h"
#include "tensor/kv_layout.h"
#include "tensor/page_arena.h"

namespace loramux {

// The rows of the batch that belong to one sequence in this step.
struct AttentionSequence {
  std::int64_t first_row = 0;  // rows [first_row, first_row + num_tokens) of the batch
  std::int64_t num_tokens = 0;
  std::int64_t position = 0;  // of the first row; earlier positions are already in the pages
  // page indices of positions [0, T), [T, 2T), ... (T: positions per page); cover all rows
  const std::uint32_t* pages = nullptr;
};

// Rounds k and v, each [rows, num_kv_heads * head_dim], to the page's type and stores them in the sequences' pages of
// `layer`, in 8 bits with the scale of each token and head. What is stored for a token depends on its own k and v
// alone. Row strides are in floats.
void StoreKv(const KernelContext& context, const KvLayout& layout, std::int64_t layer, const PageArena& arena,
             std::span<const AttentionSequence> sequences, const float* k, std::int64_t k_stride, const float* v,
             std::int64_t v_stride);

// How attention makes scores of the products of queries and keys.
struct ScoreForm {
  float scale = 1;          // above 0
  float soft_cap = 0;       // c above 0: a score is c tanh(scale * product / c)
  std::int64_t window = 0;  // of the positions in view; 0: all earlier ones
  // [num_heads]: a further score of each head, not scaled, for which there is no value; null: none.
  const float* sinks = nullptr;
  // [num_heads] slopes of ALiBi; null: none. A product of a query and a key gets slope * (position of the key - that of
  // the query) more, before it is scaled; with `rounds_bias` slope * position of the key, in bfloat16 like both.
  const float* slopes = nullptr;
  bool rounds_bias = false;
};

// out[row, head, :] = softmax(scores(q . K)) V over positions p' of the row's own sequence with p - window < p' <= p
// (window 0: all p' <= p). q, out: [rows, num_heads * head_dim], strides in floats. Query head h reads
// key-value head h / (num_heads / num_kv_heads).
// workspace: AttentionWorkspaceFloats(...) floats. The result is bitwise independent of chunking and of the rest of the
// batch. REQUIRES: StoreKv was called for the same rows.
void PagedAttention(const KernelContext& context, const KvLayout& layout, std::int64_t layer, const PageArena& arena,
                    std::span<const AttentionSequence> sequences, std::int64_t num_heads, const ScoreForm& form,
                    const float* q, std::int64_t q_stride, float* out, std::int64_t out_stride, float* workspace);

// Query rows (times heads of one key-value group) of which a thread holds the scores at once.
inline constexpr std::int64_t kAttentionTileRows = 12;

// Size of PagedAttention's workspace, in floats, for sequences of at most `max_positions` positions.
std::int64_t AttentionWorkspaceFloats(const KvLayout& layout, std::int64_t num_heads, std::int64_t max_positions,
                                      int threads);

}  // namespace loramux
