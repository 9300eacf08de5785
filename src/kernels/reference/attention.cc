#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/kernels.h"
#include "tensor/half_float.h"
#include "tensor/int8_kv.h"

namespace loramux::reference {
namespace {

// The page that holds `position` of a sequence.
std::byte* PageOf(const KvLayout& layout, const PageArena& arena, const AttentionSequence& sequence,
                  std::int64_t position) {
  return arena.base + sequence.pages[position / layout.page_tokens] * arena.page_stride;
}

// Stores the head_dim elements at `x` as integers, `stride` apart from the slot's first, and their scale.
void StoreInt8(const KvLayout& layout, std::byte* head, std::int64_t slot, std::int64_t first, std::int64_t stride,
               const float* x) {
  std::int32_t most = 0;
  for (std::int64_t d = 0; d < layout.head_dim; ++d) most = std::max(most, MagnitudeBits(x[d]));
  const Int8KvScale scale = ScaleOfInt8Kv(most);
  for (std::int64_t d = 0; d < layout.head_dim; ++d) {
    head[first + d * stride] = static_cast<std::byte>(ToInt8Kv(x[d], scale.inverse));
  }
  StoreFromF32(DType::kBF16, head + layout.ScalesOffset(), slot, BF16ToF32(scale.bf16));
}

// Element `index` of K or V of a head, which belongs to the token in `slot`.
float LoadElement(const KvLayout& layout, const std::byte* head, std::int64_t slot, std::int64_t index) {
  if (!layout.has_scales()) return LoadAsF32(layout.dtype, head, index);
  const auto integer = static_cast<float>(static_cast<std::int8_t>(head[index]));
  return integer * LoadAsF32(DType::kBF16, head + layout.ScalesOffset(), slot);
}

void StoreToken(const KvLayout& layout, std::int64_t layer, std::byte* page, std::int64_t slot, const float* k,
                const float* v) {
  for (std::int64_t head = 0; head < layout.num_kv_heads; ++head) {
    std::byte* keys = page + layout.KeyOffset(layer, head);
    std::byte* values = page + layout.ValueOffset(layer, head);
    if (layout.has_scales()) {
      StoreInt8(layout, keys, slot, slot, layout.page_tokens, k + head * layout.head_dim);
      StoreInt8(layout, values, slot, slot * layout.head_dim, 1, v + head * layout.head_dim);
      continue;
    }
    for (std::int64_t d = 0; d < layout.head_dim; ++d) {
      StoreFromF32(layout.dtype, keys, d * layout.page_tokens + slot, k[head * layout.head_dim + d]);
      StoreFromF32(layout.dtype, values, slot * layout.head_dim + d, v[head * layout.head_dim + d]);
    }
  }
}

// One query head of one row at `position`.
struct Query {
  const KvLayout& layout;
  std::int64_t layer;
  const PageArena& arena;
  const AttentionSequence& sequence;
  const ScoreForm& form;
  std::int64_t kv_head;
  float sink;             // of its head; -infinity: none
  float slope;            // of its head; 0: none
  std::int64_t first;     // first position in its view
  std::int64_t position;  // last position in its view: its own
};

float Key(const Query& query, std::int64_t position, std::int64_t d) {
  const KvLayout& layout = query.layout;
  const std::byte* page = PageOf(layout, query.arena, query.sequence, position);
  const std::int64_t slot = position % layout.page_tokens;
  return LoadElement(layout, page + layout.KeyOffset(query.layer, query.kv_head), slot, d * layout.page_tokens + slot);
}

float Value(const Query& query, std::int64_t position, std::int64_t d) {
  const KvLayout& layout = query.layout;
  const std::byte* page = PageOf(layout, query.arena, query.sequence, position);
  const std::int64_t slot = position % layout.page_tokens;
  return LoadElement(layout, page + layout.ValueOffset(query.layer, query.kv_head), slot, slot * layout.head_dim + d);
}

// What ALiBi adds to the product with a key.
float Bias(const Query& query, std::int64_t position) {
  if (!query.form.rounds_bias) return query.slope * static_cast<float>(position - query.position);
  const auto rounded = [](float value) { return BF16ToF32(F32ToBF16(value)); };
  return rounded(query.slope * rounded(static_cast<float>(position)));
}

void AttendOne(const Query& query, const float* q, float* out) {
  const std::int64_t head_dim = query.layout.head_dim;
  std::vector<float> scores;
  for (std::int64_t p = query.first; p <= query.position; ++p) {
    float dot = 0;
    for (std::int64_t d = 0; d < head_dim; ++d) dot += q[d] * Key(query, p, d);
    dot += Bias(query, p);
    const float score = dot * query.form.scale, cap = query.form.soft_cap;
    scores.push_back(cap > 0 ? cap * std::tanh(score / cap) : score);
  }
  const float maximum = std::max(query.sink, *std::max_element(scores.begin(), scores.end()));
  float sum = std::exp(query.sink - maximum);
  for (float& score : scores) sum += score = std::exp(score - maximum);
  for (std::int64_t d = 0; d < head_dim; ++d) {
    float value = 0;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      value += scores[i] * Value(query, query.first + static_cast<std::int64_t>(i), d);
    }
    out[d] = value / sum;
  }
}

}  // namespace

void StoreKv(const KernelContext&, const KvLayout& layout, std::int64_t layer, const PageArena& arena,
             std::span<const AttentionSequence> sequences, const float* k, std::int64_t k_stride, const float* v,
             std::int64_t v_stride) {
  for (const AttentionSequence& sequence : sequences) {
    for (std::int64_t i = 0; i < sequence.num_tokens; ++i) {
      const std::int64_t position = sequence.position + i;
      const std::int64_t row = sequence.first_row + i;
      StoreToken(layout, layer, PageOf(layout, arena, sequence, position), position % layout.page_tokens,
                 k + row * k_stride, v + row * v_stride);
    }
  }
}

void PagedAttention(const KernelContext& context, const KvLayout& layout, std::int64_t layer, const PageArena& arena,
                    std::span<const AttentionSequence> sequences, std::int64_t num_heads, const ScoreForm& form,
                    const float* q, std::int64_t q_stride, float* out, std::int64_t out_stride, float*) {
  const std::int64_t group = num_heads / layout.num_kv_heads;
  for (const AttentionSequence& sequence : sequences) {
    context.pool->Run(sequence.num_tokens * num_heads, [&](std::int64_t task, int) {
      const std::int64_t head = task % num_heads;
      const std::int64_t row = sequence.first_row + task / num_heads;
      const std::int64_t position = sequence.position + task / num_heads;
      const std::int64_t first = form.window > 0 ? std::max<std::int64_t>(0, position - form.window + 1) : 0;
      const float sink = form.sinks == nullptr ? -std::numeric_limits<float>::infinity() : form.sinks[head];
      const float slope = form.slopes == nullptr ? 0.0f : form.slopes[head];
      AttendOne({layout, layer, arena, sequence, form, head / group, sink, slope, first, position},
                q + row * q_stride + head * layout.head_dim, out + row * out_stride + head * layout.head_dim);
    });
  }
}

}  // namespace loramux::reference
