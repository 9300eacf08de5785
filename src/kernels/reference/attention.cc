#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention.h"
#include "tensor/half_float.h"
#include "tensor/int8_kv.h"

namespace loramux::reference {
namespace {

// Stores the head_dim elements at `x` as integers, of keys `page_tokens` apart, and their scale.
void StoreInt8(const KvLayout& layout, std::byte* head, std::int64_t slot, bool of_keys, const float* x) {
  std::int32_t most = 0;
  for (std::int64_t d = 0; d < layout.head_dim; ++d) most = std::max(most, MagnitudeBits(x[d]));
  const Int8KvScale scale = ScaleOfInt8Kv(most);
  for (std::int64_t d = 0; d < layout.head_dim; ++d) {
    head[of_keys ? d * layout.page_tokens + slot : slot * layout.head_dim + d] =
        static_cast<std::byte>(ToInt8Kv(x[d], scale.inverse));
  }
  StoreFromF32(DType::kBF16, head + layout.ScalesOffset(), slot, BF16ToF32(scale.bf16));
}

// Element `index` of K or V of a head, which belongs to the token in `slot`.
float LoadElement(const KvLayout& layout, const std::byte* head, std::int64_t slot, std::int64_t index) {
  if (!layout.has_scales()) return LoadAsF32(layout.dtype, head, index);
  const auto integer = static_cast<float>(static_cast<std::int8_t>(head[index]));
  return integer * LoadAsF32(DType::kBF16, head + layout.ScalesOffset(), slot);
}

void StoreToken(const PagesOfLayer& pages, std::byte* page, std::int64_t slot, const float* k, const float* v) {
  const KvLayout& layout = pages.layout;
  for (std::int64_t head = 0; head < layout.num_kv_heads; ++head) {
    std::byte* keys = page + layout.KeyOffset(pages.layer, head);
    std::byte* values = page + layout.ValueOffset(pages.layer, head);
    if (layout.has_scales()) {
      StoreInt8(layout, keys, slot, true, k + head * layout.head_dim);
      StoreInt8(layout, values, slot, false, v + head * layout.head_dim);
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
  const PagesOfLayer& pages;
  const AttentionSequence& sequence;
  const ScoreForm& form;
  std::int64_t kv_head;
  float sink;             // sink of its head; -infinity: none
  float slope;            // slope of its head; 0: none
  std::int64_t first;     // first position in its view
  std::int64_t position;  // last position in its view: its own
};

float Key(const Query& query, std::int64_t position, std::int64_t d) {
  const KvLayout& layout = query.pages.layout;
  const std::byte* page = query.pages.Find(query.sequence, position);
  const std::int64_t slot = position % layout.page_tokens;
  return LoadElement(layout, page + layout.KeyOffset(query.pages.layer, query.kv_head), slot,
                     d * layout.page_tokens + slot);
}

float Value(const Query& query, std::int64_t position, std::int64_t d) {
  const KvLayout& layout = query.pages.layout;
  const std::byte* page = query.pages.Find(query.sequence, position);
  const std::int64_t slot = position % layout.page_tokens;
  return LoadElement(layout, page + layout.ValueOffset(query.pages.layer, query.kv_head), slot,
                     slot * layout.head_dim + d);
}

// What ALiBi adds to the product with a key.
float Bias(const Query& query, std::int64_t position) {
  if (!query.form.rounds_bias) return query.slope * static_cast<float>(position - query.position);
  const auto rounded = [](float value) { return BF16ToF32(F32ToBF16(value)); };
  return rounded(query.slope * rounded(static_cast<float>(position)));
}

void AttendOne(const Query& query, const float* q, float* out) {
  const std::int64_t head_dim = query.pages.layout.head_dim;
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

void StoreKv(const KernelContext&, const StoreKvArguments& a) {
  for (const AttentionSequence& sequence : a.sequences) {
    for (std::int64_t i = 0; i < sequence.num_tokens; ++i) {
      const std::int64_t position = sequence.position + i, row = sequence.first_row + i;
      StoreToken(a.pages, a.pages.Find(sequence, position), position % a.pages.layout.page_tokens, a.k[row], a.v[row]);
    }
  }
}

void Attention(const KernelContext& context, const AttentionArguments& a) {
  const std::int64_t head_dim = a.pages.layout.head_dim, group = a.num_heads / a.pages.layout.num_kv_heads;
  const ScoreForm& form = a.form;
  for (const AttentionSequence& sequence : a.sequences) {
    context.pool->Run(sequence.num_tokens * a.num_heads, [&](std::int64_t task, int) {
      const std::int64_t head = task % a.num_heads;
      const std::int64_t row = sequence.first_row + task / a.num_heads;
      const std::int64_t position = sequence.position + task / a.num_heads;
      const std::int64_t first = form.window > 0 ? std::max<std::int64_t>(0, position - form.window + 1) : 0;
      const float sink = form.sinks == nullptr ? -std::numeric_limits<float>::infinity() : form.sinks[head];
      const float slope = form.slopes == nullptr ? 0.0f : form.slopes[head];
      AttendOne({a.pages, sequence, form, head / group, sink, slope, first, position}, a.q[row] + head * head_dim,
                a.out[row] + head * head_dim);
    });
  }
}

}  // namespace loramux::reference
