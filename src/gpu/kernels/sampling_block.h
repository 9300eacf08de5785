// What the threads of a sampling block do together: walk over a row of logits, reduce, sort. Every block has
// kSamplingThreads threads and one row. Sums go in a fixed order.
#pragma once

#include "gpu/kernel_api.h"

namespace loramux::gpu {

inline constexpr int kSamplingThreads = 512;
inline constexpr int kSamplingWarps = kSamplingThreads / 32;
inline constexpr int kSearchBuckets = 8;
inline constexpr std::uint32_t kListCapacity = 2 * kSamplingThreads;
inline constexpr std::int32_t kCountersAtOnce = 8192;
inline constexpr std::int32_t kDrawChunks = 128;

// The shared memory of a block.
struct SamplingShared {
  union {
    std::uint32_t counters[kCountersAtOnce];  // how often a token was seen
    std::uint64_t list[kListCapacity];        // tokens in order: see Composite
    double chunks[kDrawChunks];               // weights of parts of the vocabulary
  };
  std::uint64_t warp_max[kSamplingWarps];
  double warp_sums[kSearchBuckets][kSamplingWarps];
  std::uint32_t warp_counts[kSearchBuckets][kSamplingWarps];
  double sums[kSearchBuckets];
  std::uint32_t counts[kSearchBuckets];
  std::uint32_t list_size;
  std::int32_t token;
};

LORAMUX_DEVICE std::int32_t ThreadOfBlock() { return static_cast<std::int32_t>(ThreadIndex()); }
LORAMUX_DEVICE std::int32_t WarpOfBlock() { return static_cast<std::int32_t>(ThreadIndex() / 32); }
LORAMUX_DEVICE std::int32_t LaneOfWarp() { return static_cast<std::int32_t>(ThreadIndex() % 32); }

LORAMUX_DEVICE float Infinity() { return AsFloat(0x7f800000u); }
LORAMUX_DEVICE bool IsFinite(float x) { return (AsBits(x) & 0x7f800000u) != 0x7f800000u; }
LORAMUX_DEVICE bool IsNan(float x) { return !(x == x); }

// ---- the order of tokens

// The larger composite is the better token: the larger logit, then the lower id. Zeros of both signs are equal. Of a
// NaN, it means nothing.
LORAMUX_DEVICE std::uint64_t Composite(float logit, std::int32_t id) {
  const std::uint32_t bits = logit == 0 ? 0 : AsBits(logit);
  const std::uint32_t key = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<std::uint64_t>(key) << 32 | ~static_cast<std::uint32_t>(id);
}
LORAMUX_DEVICE std::int32_t IdOf(std::uint64_t composite) {
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(composite));
}
LORAMUX_DEVICE float LogitOf(std::uint64_t composite) {
  const std::uint32_t key = static_cast<std::uint32_t>(composite >> 32);
  return AsFloat((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

// ---- a row

// The logits of a row, -infinity where a grammar does not allow the token.
struct LogitRow {
  const float* logits;
  std::int32_t size;
  const std::uint32_t* mask;  // null: all are allowed
  std::int64_t mask_words;

  LORAMUX_DEVICE bool Allows(std::int64_t id) const {
    return mask == nullptr || (id / 32 < mask_words && (Load(mask + id / 32) >> (id % 32) & 1) != 0);
  }
  LORAMUX_DEVICE float At(std::int32_t id) const { return Allows(id) ? Load(logits + id) : -Infinity(); }
};

// Calls visit(id, logit) for the thread's share of the row, by ascending id. Loads go ahead of the visits.
template <typename Visit>
LORAMUX_DEVICE void ForEachLogit(const LogitRow& row, const Visit& visit) {
  constexpr std::int32_t kAhead = 8;
  for (std::int32_t begin = ThreadOfBlock(); begin < row.size; begin += kAhead * kSamplingThreads) {
    float logits[kAhead];
    LORAMUX_UNROLL
    for (std::int32_t i = 0; i < kAhead; ++i) {
      const std::int32_t id = begin + i * kSamplingThreads;
      logits[i] = id < row.size ? row.At(id) : -Infinity();
    }
    LORAMUX_UNROLL
    for (std::int32_t i = 0; i < kAhead; ++i) {
      const std::int32_t id = begin + i * kSamplingThreads;
      if (id < row.size) visit(id, logits[i]);
    }
  }
}

// ---- reductions: all threads come, and all get the result

LORAMUX_DEVICE std::uint64_t BlockMax(SamplingShared& shared, std::uint64_t value) {
  value = MaxWarp(value);
  if (LaneOfWarp() == 0) shared.warp_max[WarpOfBlock()] = value;
  SyncBlock();
  for (std::int32_t warp = 0; warp < kSamplingWarps; ++warp) {
    value = shared.warp_max[warp] > value ? shared.warp_max[warp] : value;
  }
  SyncBlock();
  return value;
}

LORAMUX_DEVICE double BlockSum(SamplingShared& shared, double value) {
  value = SumWarp(value);
  if (LaneOfWarp() == 0) shared.warp_sums[0][WarpOfBlock()] = value;
  SyncBlock();
  double sum = 0;
  for (std::int32_t warp = 0; warp < kSamplingWarps; ++warp) sum += shared.warp_sums[0][warp];
  SyncBlock();
  return sum;
}

LORAMUX_DEVICE bool BlockAny(SamplingShared& shared, bool value) { return BlockMax(shared, value ? 1 : 0) != 0; }

// The sum over the lanes up to this one.
LORAMUX_DEVICE double PrefixSumWarp(double value) {
  LORAMUX_UNROLL
  for (std::int32_t distance = 1; distance < 32; distance *= 2) {
    const std::int32_t from = LaneOfWarp() - distance;
    const double other = Shuffle(value, from < 0 ? 0 : from);
    if (from >= 0) value += other;
  }
  return value;
}

// Sorts shared.list[0, n), best first. Fills it up to a power of two with zeros: bitonic sort.
LORAMUX_DEVICE void SortList(SamplingShared& shared, std::uint32_t n) {
  std::uint32_t padded = 2;
  while (padded < n) padded *= 2;
  const std::uint32_t thread = ThreadIndex();
  for (std::uint32_t i = n + thread; i < padded; i += kSamplingThreads) shared.list[i] = 0;
  SyncBlock();
  for (std::uint32_t sorted = 2; sorted <= padded; sorted *= 2) {
    for (std::uint32_t stride = sorted / 2; stride > 0; stride /= 2) {
      const std::uint32_t i = 2 * stride * (thread / stride) + thread % stride;
      if (i + stride < padded) {
        const std::uint64_t a = shared.list[i], b = shared.list[i + stride];
        if ((a < b) == ((i & sorted) == 0)) {
          shared.list[i] = b;
          shared.list[i + stride] = a;
        }
      }
      SyncBlock();
    }
  }
}

}  // namespace loramux::gpu
