// Causal attention over paged keys and values, and storing new keys and values in pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/operation_forms.h"
#include "kernels/kernel_context.h"
#include "tensor/kv_layout.h"
#include "tensor/page_arena.h"

namespace loramux {

// The rows of the batch that belong to one sequence in this step.
struct AttentionSequence {
  std::int64_t first_row = 0;  // rows [first_row, first_row + num_tokens) of the batch
  std::int64_t num_tokens = 0;
  std::int64_t position = 0;  // position of the first row; earlier positions are already in the pages
  // page indices of positions [0, T), [T, 2T), ... (T: positions per page); cover all rows
  const std::uint32_t* pages = nullptr;
};

// The pages of a layer, as its own heads lie in them.
struct PagesOfLayer {
  KvLayout layout;
  PageArena arena;
  std::int64_t layer = 0;

  // The page that holds `position` of a sequence.
  std::byte* Find(const AttentionSequence& sequence, std::int64_t position) const {
    return arena.base + sequence.pages[position / layout.page_tokens] * arena.page_stride;
  }
  // REQUIRES: what the operations require of their pages and sequences.
  void Check(std::span<const AttentionSequence> sequences) const;
};

// Rounds k and v, each [rows, num_kv_heads * head_dim], to the page's type and stores them in the sequences' pages of
// the layer, in 8 bits with the scale of each token and head. What is stored for a token depends on its own k and v
// alone.
struct StoreKvArguments {
  PagesOfLayer pages;
  std::span<const AttentionSequence> sequences;
  ConstRows k, v;

  void Check() const { pages.Check(sequences); }
};
LORAMUX_KERNEL(StoreKv)

// out[row, head, :] = softmax(scores(q . K)) V over positions p' of the row's own sequence with p - window < p' <= p
// (window 0: all p' <= p). q, out: [rows, num_heads * head_dim]. Query head h reads key-value head h / (num_heads /
// num_kv_heads). The result is bitwise independent of chunking and of the rest of the batch. REQUIRES: StoreKv was
// called for the same rows.
struct AttentionArguments {
  PagesOfLayer pages;
  std::span<const AttentionSequence> sequences;
  std::int64_t num_heads = 0;
  ScoreForm form;
  ConstRows q;
  Rows out;
  float* workspace = nullptr;  // AttentionWorkspaceFloats(...) floats

  void Check() const;
};
LORAMUX_KERNEL(Attention)

// Query rows (times heads of one key-value group) of which a thread holds the scores at once.
inline constexpr std::int64_t kAttentionTileRows = 12;

// Size of Attention's workspace, in floats, for sequences of at most `max_positions` positions.
std::int64_t AttentionWorkspaceFloats(const KvLayout& layout, std::int64_t num_heads, std::int64_t max_positions,
                                      int threads);

}  // namespace loramux
