#include "kernels/attention.h"

namespace loramux {

void PagesOfLayer::Check(std::span<const AttentionSequence> sequences) const {
  CHECK(layout.Validate().ok());
  CHECK_GE(layer, 0);
  CHECK_LT(layer, layout.num_layers);
  CHECK(arena.base != nullptr && arena.page_stride >= layout.PageBytes());
  for (const AttentionSequence& sequence : sequences) {
    CHECK_GE(sequence.position, 0);
    CHECK_GE(sequence.num_tokens, 0);
    CHECK(sequence.num_tokens == 0 || sequence.pages != nullptr);
  }
}

void AttentionArguments::Check() const {
  pages.Check(sequences);
  CHECK_GT(num_heads, 0);
  CHECK_EQ(num_heads % pages.layout.num_kv_heads, 0);
  CHECK_GE(form.window, 0);
  CHECK_GT(form.scale, 0);
}

std::int64_t AttentionWorkspaceFloats(const KvLayout& layout, std::int64_t num_heads, std::int64_t max_positions,
                                      int threads) {
  // Each thread keeps the queries of one tile, and its scores twice. A row of scores is rounded up at both ends to
  // whole vectors of at most 16, and padded by one more.
  const std::int64_t scores = (max_positions + 15) / 16 * 16 + 32;
  return threads * kAttentionTileRows * (layout.head_dim + 2 * scores);
}

}  // namespace loramux
