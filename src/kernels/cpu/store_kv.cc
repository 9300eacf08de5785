#include <algorithm>

#include "kernels/attention.h"
#include "tensor/half_float.h"
#include "tensor/int8_kv.h"

// Deliberately scalar: a token has a few thousand elements per layer, each written to a different place (keys are
// transposed). It matters more that whole pages of a prompt are written line by line.
namespace loramux::cpu {
namespace {

// Tokens of a sequence, all in one page, and one of their heads.
struct Run {
  std::byte *keys, *values;  // where the head begins in the page
  std::int64_t slot;         // slot of the first token
  std::int64_t count;
  ConstRows k, v;  // rows of the head, from the first token on
};

float Convert(float value, float) { return value; }
struct BF16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};
BF16 Convert(float value, BF16) { return {F32ToBF16(value)}; }
F16 Convert(float value, F16) { return {F32ToF16(value)}; }

template <typename T>
void StoreHead(const KvLayout& layout, const Run& run) {
  const std::int64_t head_dim = layout.head_dim;
  const ConstRows k = run.k, v = run.v;
  T* keys = reinterpret_cast<T*>(run.keys) + run.slot;
  for (std::int64_t d = 0; d < head_dim; ++d) {
    for (std::int64_t i = 0; i < run.count; ++i) keys[d * layout.page_tokens + i] = Convert(k[i][d], T{});
  }
  T* values = reinterpret_cast<T*>(run.values) + run.slot * head_dim;
  for (std::int64_t i = 0; i < run.count; ++i) {
    for (std::int64_t d = 0; d < head_dim; ++d) values[i * head_dim + d] = Convert(v[i][d], T{});
  }
}

// The scales of the run's tokens, from the rows of the head; stored too.
void StoreScales(const KvLayout& layout, const Run& run, std::byte* head, ConstRows x, float* inverse) {
  auto* scales = reinterpret_cast<BF16*>(head + layout.ScalesOffset()) + run.slot;
  for (std::int64_t i = 0; i < run.count; ++i) {
    std::int32_t most = 0;
    for (std::int64_t d = 0; d < layout.head_dim; ++d) most = std::max(most, MagnitudeBits(x[i][d]));
    const Int8KvScale scale = ScaleOfInt8Kv(most);
    scales[i].bits = scale.bf16;
    inverse[i] = scale.inverse;
  }
}

template <>
void StoreHead<std::int8_t>(const KvLayout& layout, const Run& run) {
  constexpr std::int64_t kMostPageTokens = 64;
  float inverse[kMostPageTokens];
  const std::int64_t head_dim = layout.head_dim;
  const ConstRows k = run.k, v = run.v;
  StoreScales(layout, run, run.keys, k, inverse);
  auto* keys = reinterpret_cast<std::int8_t*>(run.keys) + run.slot;
  for (std::int64_t d = 0; d < head_dim; ++d) {
    for (std::int64_t i = 0; i < run.count; ++i) keys[d * layout.page_tokens + i] = ToInt8Kv(k[i][d], inverse[i]);
  }
  StoreScales(layout, run, run.values, v, inverse);
  auto* values = reinterpret_cast<std::int8_t*>(run.values) + run.slot * head_dim;
  for (std::int64_t i = 0; i < run.count; ++i) {
    for (std::int64_t d = 0; d < head_dim; ++d) values[i * head_dim + d] = ToInt8Kv(v[i][d], inverse[i]);
  }
}

}  // namespace

void StoreKv(const KernelContext& context, const StoreKvArguments& a) {
  const KvLayout& layout = a.pages.layout;
  const std::int64_t page_tokens = layout.page_tokens;
  const auto store = layout.dtype == DType::kF32   ? StoreHead<float>
                     : layout.dtype == DType::kF16 ? StoreHead<F16>
                     : layout.dtype == DType::kI8  ? StoreHead<std::int8_t>
                                                   : StoreHead<BF16>;
  for (const AttentionSequence& sequence : a.sequences) {
    if (sequence.num_tokens == 0) continue;
    const std::int64_t end = sequence.position + sequence.num_tokens;
    const std::int64_t first_page = sequence.position / page_tokens;
    const auto store_page = [&](std::int64_t task, int) {
      const std::int64_t page = first_page + task;
      const std::int64_t begin = std::max(sequence.position, page * page_tokens);
      const std::int64_t row = sequence.first_row + begin - sequence.position;
      std::byte* const at = a.pages.Find(sequence, begin);
      for (std::int64_t head = 0; head < layout.num_kv_heads; ++head) {
        store(layout, {at + layout.KeyOffset(a.pages.layer, head), at + layout.ValueOffset(a.pages.layer, head),
                       begin - page * page_tokens, std::min(end, (page + 1) * page_tokens) - begin,
                       a.k.Below(row).From(head * layout.head_dim), a.v.Below(row).From(head * layout.head_dim)});
      }
    };
    // A prompt's chunk is worth waking the other threads, a decode step's token is not.
    const std::int64_t pages = (end - 1) / page_tokens - first_page + 1;
    if (sequence.num_tokens >= 32) {
      context.pool->Run(pages, store_page);
    } else {
      for (std::int64_t page = 0; page < pages; ++page) store_page(page, 0);
    }
  }
}

}  // namespace loramux::cpu
