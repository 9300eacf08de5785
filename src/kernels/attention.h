// Causal attention over paged keys and values, and the store of new keys and values into pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernel_context.h"
#include "tensor/kv_layout.h"

namespace loramux {

// The rows of the batch that belong to one sequence in this step.
struct AttentionSequence {
  std::int64_t first_row = 0;  // rows [first_row, first_row + num_tokens) of the batch
  std::int64_t num_tokens = 0;
  std::int64_t position = 0;             // of the first row; earlier positions are in the pages already
  const std::uint32_t* pages = nullptr;  // page index of positions [0, T), [T, 2T), ...; covers all rows
};

// Where pages lie: page p starts at base + p * page_stride.
struct PageArena {
  std::byte* base = nullptr;
  std::size_t page_stride = 0;
};

// Rounds k and v [rows, num_kv_heads * head_dim] (row strides in floats) to the page's type and stores them.
void StoreKv(const KernelContext& context, const KvLayout& layout, std::int64_t layer, const PageArena& arena,
             std::span<const AttentionSequence> sequences, const float* k, std::int64_t k_stride, const float* v,
             std::int64_t v_stride);

// out[row, head, :] = softmax(q . K / sqrt(head_dim)) V over positions p' of the row's own sequence with
// p - window < p' <= p (window 0: all p' <= p). q, out: [rows, num_heads * head_dim]. Query head h reads key-value
// head h / (num_heads / num_kv_heads). Call after StoreKv of the same rows.
// workspace: AttentionWorkspaceFloats(...) floats. Bitwise independent of chunking and of the rest of the batch.
void PagedAttention(const KernelContext& context, const KvLayout& layout, std::int64_t layer, const PageArena& arena,
                    std::span<const AttentionSequence> sequences, std::int64_t num_heads, std::int64_t window,
                    const float* q, std::int64_t q_stride, float* out, std::int64_t out_stride, float* workspace);

// Query rows (times heads of one key-value group) whose scores a thread holds at once.
inline constexpr std::int64_t kAttentionTileRows = 12;

// Floats of workspace for sequences of at most max_positions positions.
std::int64_t AttentionWorkspaceFloats(const KvLayout& layout, std::int64_t num_heads, std::int64_t max_positions,
                                      int threads);

}  // namespace loramux
