#include "kernels/attention.h"

#include "kernels/cpu/kernels.h"
#include "kernels/reference/kernels.h"

namespace loramux {
namespace {

void CheckSequences(const KvLayout& layout, std::int64_t layer, const PageArena& arena,
                    std::span<const AttentionSequence> sequences) {
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

}  // namespace

void StoreKv(const KernelContext& context, const KvLayout& layout, std::int64_t layer, const PageArena& arena,
             std::span<const AttentionSequence> sequences, const float* k, std::int64_t k_stride, const float* v,
             std::int64_t v_stride) {
  CHECK(context.pool != nullptr);
  CheckSequences(layout, layer, arena, sequences);
  const auto implementation = context.backend == Backend::kReference ? reference::StoreKv : cpu::StoreKv;
  implementation(context, layout, layer, arena, sequences, k, k_stride, v, v_stride);
}

void PagedAttention(const KernelContext& context, const KvLayout& layout, std::int64_t layer, const PageArena& arena,
                    std::span<const AttentionSequence> sequences, std::int64_t num_heads, const ScoreForm& form,
                    const float* q, std::int64_t q_stride, float* out, std::int64_t out_stride, float* workspace) {
  CHECK(context.pool != nullptr);
  CheckSequences(layout, layer, arena, sequences);
  CHECK_GT(num_heads, 0);
  CHECK_EQ(num_heads % layout.num_kv_heads, 0);
  CHECK_GE(form.window, 0);
  CHECK_GT(form.scale, 0);
  const auto implementation = context.backend == Backend::kReference ? reference::PagedAttention : cpu::PagedAttention;
  implementation(context, layout, layer, arena, sequences, num_heads, form, q, q_stride, out, out_stride, workspace);
}

std::int64_t AttentionWorkspaceFloats(const KvLayout& layout, std::int64_t num_heads, std::int64_t max_positions,
                                      int threads) {
  // Each thread keeps the queries of one tile, and its scores twice. A row of scores is rounded up at both ends to
  // whole vectors of at most 16, and padded by one more.
  const std::int64_t scores = (max_positions + 15) / 16 * 16 + 32;
  return threads * kAttentionTileRows * (layout.head_dim + 2 * scores);
}

}  // namespace loramux
