#include <algorithm>

#include "kernels/cpu/kernels.h"
#include "tensor/half_float.h"
#include "tensor/int8_kv.h"

// Deliberately scalar: a token has a few thousand elements per layer, each written to a different place (keys are
// transposed). It matters more that whole pages of a prompt are written line by line.
namespace loramux::cpu {
namespace {

// The tokens [begin, begin + count) of a sequence, all in one page.
struct Run {
  std::byte* page;
  std::int64_t slot;  // of the first token
  std::int64_t count;
  const float* k;  // row of the first token
  const float* v;
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
void StoreHead(const KvLayout& layout, const Run& run, std::byte* keys_at, std::byte* values_at, const float* k,
               std::int64_t k_stride, const float* v, std::int64_t v_stride) {
  const std::int64_t head_dim = layout.head_dim;
  T* keys = reinterpret_cast<T*>(keys_at) + run.slot;
  for (std::int64_t d = 0; d < head_dim; ++d) {
    for (std::int64_t i = 0; i < run.count; ++i) keys[d * layout.page_tokens + i] = Convert(k[i * k_stride + d], T{});
  }
  T* values = reinterpret_cast<T*>(values_at) + run.slot * head_dim;
  for (std::int64_t i = 0; i < run.count; ++i) {
    for (std::int64_t d = 0; d < head_dim; ++d) values[i * head_dim + d] = Convert(v[i * v_stride + d], T{});
  }
}

// The scales of the run's tokens, from the rows at `x` of one head; stored too.
void StoreScales(const KvLayout& layout, const Run& run, std::byte* head, const float* x, std::int64_t stride,
                 float* inverse) {
  auto* scales = reinterpret_cast<BF16*>(head + layout.ScalesOffset()) + run.slot;
  for (std::int64_t i = 0; i < run.count; ++i) {
    std::int32_t most = 0;
    for (std::int64_t d = 0; d < layout.head_dim; ++d) most = std::max(most, MagnitudeBits(x[i * stride + d]));
    const Int8KvScale scale = ScaleOfInt8Kv(most);
    scales[i].bits = scale.bf16;
    inverse[i] = scale.inverse;
  }
}

template <>
void StoreHead<std::int8_t>(const KvLayout& layout, const Run& run, std::byte* keys_at, std::byte* values_at,
                            const float* k, std::int64_t k_stride, const float* v, std::int64_t v_stride) {
  constexpr std::int64_t kMostPageTokens = 64;
  float inverse[kMostPageTokens];
  const std::int64_t head_dim = layout.head_dim;
  StoreScales(layout, run, keys_at, k, k_stride, inverse);
  auto* keys = reinterpret_cast<std::int8_t*>(keys_at) + run.slot;
  for (std::int64_t d = 0; d < head_dim; ++d) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      keys[d * layout.page_tokens + i] = ToInt8Kv(k[i * k_stride + d], inverse[i]);
    }
  }
  StoreScales(layout, run, values_at, v, v_stride, inverse);
  auto* values = reinterpret_cast<std::int8_t*>(values_at) + run.slot * head_dim;
  for (std::int64_t i = 0; i < run.count; ++i) {
    for (std::int64_t d = 0; d < head_dim; ++d) values[i * head_dim + d] = ToInt8Kv(v[i * v_stride + d], inverse[i]);
  }
}

template <typename T>
void StoreRun(const KvLayout& layout, std::int64_t layer, const Run& run, std::int64_t k_stride,
              std::int64_t v_stride) {
  for (std::int64_t head = 0; head < layout.num_kv_heads; ++head) {
    StoreHead<T>(layout, run, run.page + layout.KeyOffset(layer, head), run.page + layout.ValueOffset(layer, head),
                 run.k + head * layout.head_dim, k_stride, run.v + head * layout.head_dim, v_stride);
  }
}

}  // namespace

void StoreKv(const KernelContext& context, const KvLayout& layout, std::int64_t layer, const PageArena& arena,
             std::span<const AttentionSequence> sequences, const float* k, std::int64_t k_stride, const float* v,
             std::int64_t v_stride) {
  const std::int64_t page_tokens = layout.page_tokens;
  const auto store = layout.dtype == DType::kF32   ? StoreRun<float>
                     : layout.dtype == DType::kF16 ? StoreRun<F16>
                     : layout.dtype == DType::kI8  ? StoreRun<std::int8_t>
                                                   : StoreRun<BF16>;
  for (const AttentionSequence& sequence : sequences) {
    if (sequence.num_tokens == 0) continue;
    const std::int64_t end = sequence.position + sequence.num_tokens;
    const std::int64_t first_page = sequence.position / page_tokens;
    const auto store_page = [&](std::int64_t task, int) {
      const std::int64_t page = first_page + task;
      const std::int64_t begin = std::max(sequence.position, page * page_tokens);
      const std::int64_t row = sequence.first_row + begin - sequence.position;
      const Run run = {arena.base + sequence.pages[page] * arena.page_stride, begin - page * page_tokens,
                       std::min(end, (page + 1) * page_tokens) - begin, k + row * k_stride, v + row * v_stride};
      store(layout, layer, run, k_stride, v_stride);
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
