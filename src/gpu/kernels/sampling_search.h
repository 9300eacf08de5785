// Thresholds: the last token of the shortest prefix, best tokens first, that weighs enough. Top-k weighs each token 1;
// top-p weighs by probability.
//
// The search narrows an interval of the order. Each pass over the row weighs what is better than eight pivots, and goes
// on in the bucket that holds the last token. Once few tokens are left, they are listed and sorted. A softmax is
// peaked, so that the first pivots, which lie near the maximum, nearly always suffice.
#pragma once

#include "gpu/kernels/sampling_block.h"

namespace loramux::gpu {

// e^x for x <= 0; exactly 0 below -87. The bits of ExpNonPositive in model/sampler.cc: every operation is rounded by
// itself.
LORAMUX_DEVICE float ExpNonPositive(float x) {
  constexpr float kRound = 12582912.0f;
  if (!(x > -87.0f)) return 0;
  const float rounded = AddRounded(MulRounded(x, 1.44269504f), kRound);
  const float n = AddRounded(rounded, -kRound);
  const float r = AddRounded(AddRounded(x, -MulRounded(n, 0.693359375f)), MulRounded(n, 2.12194440e-4f));
  float p = 1.9875691500e-4f;
  p = AddRounded(MulRounded(p, r), 1.3981999507e-3f);
  p = AddRounded(MulRounded(p, r), 8.3334519073e-3f);
  p = AddRounded(MulRounded(p, r), 4.1665795894e-2f);
  p = AddRounded(MulRounded(p, r), 1.6666665459e-1f);
  p = AddRounded(MulRounded(p, r), 5.0000001201e-1f);
  const float mantissa = AddRounded(AddRounded(MulRounded(MulRounded(p, r), r), r), 1.0f);
  return AsFloat(AsBits(mantissa) + ((AsBits(rounded) - AsBits(kRound)) << 23));
}

// Softmax without its denominator.
struct DeviceSoftmax {
  float max, inverse_temperature;
  LORAMUX_DEVICE float Score(float logit) const { return MulRounded(AddRounded(logit, -max), inverse_temperature); }
  LORAMUX_DEVICE float Weight(float logit) const { return ExpNonPositive(Score(logit)); }
};

// The weights of the tokens that may be drawn; 0 for all others.
struct DrawWeights {
  DeviceSoftmax softmax;
  float depth;          // min-p
  std::uint64_t limit;  // worse tokens are out
  LORAMUX_DEVICE float operator()(float logit, std::uint64_t composite) const {
    const float score = softmax.Score(logit);
    return composite >= limit && score >= -depth ? ExpNonPositive(score) : 0;
  }
};

// Each token that has a weight counts 1.
struct DrawCounts {
  DrawWeights weights;
  LORAMUX_DEVICE float operator()(float logit, std::uint64_t composite) const {
    return weights(logit, composite) > 0 ? 1.0f : 0.0f;
  }
};

// Each token that is possible at all counts 1.
struct PossibleCounts {
  LORAMUX_DEVICE float operator()(float logit, std::uint64_t /*composite*/) const {
    return logit > -Infinity() ? 1.0f : 0.0f;
  }
};

struct Prefix {
  std::uint64_t last;   // the last token's composite; 0: all tokens with a weight
  std::int32_t listed;  // its tokens are shared.list[0, listed), best first; -1: there are too many
};

// Where the search is. All threads hold the same.
struct SearchInterval {
  std::uint64_t low, high;    // the last token's composite is in (low, high]
  double above;               // weight of the tokens above `high`
  std::uint32_t above_count;  // how many
  std::uint32_t count;        // tokens in the interval
};

// The pivots of a pass, descending; the last is `low`. The first pass looks at given depths below the best token.
LORAMUX_DEVICE void SetPivots(const SearchInterval& at, bool first, const DeviceSoftmax& softmax,
                              std::uint64_t (&pivots)[kSearchBuckets]) {
  const float temperature = DivRounded(1.0f, softmax.inverse_temperature);
  LORAMUX_UNROLL
  for (int i = 0; i < kSearchBuckets - 1; ++i) {
    // Depths 0.5, 1, 2 .. 32. An id of -1 is below all ids of the same logit.
    const float depth = AsFloat((126u + static_cast<std::uint32_t>(i)) << 23);
    const float logit = AddRounded(softmax.max, -MulRounded(depth, temperature));
    const std::uint64_t by_depth = IsNan(logit) ? at.low : Composite(logit, -1);
    const std::uint64_t step = (at.high - at.low) / kSearchBuckets;
    pivots[i] = first ? by_depth : at.high - step * static_cast<std::uint64_t>(i + 1);
  }
  pivots[kSearchBuckets - 1] = at.low;
}

// Sets shared.sums and .counts [i] to the weight and the number of the interval's tokens above pivot i.
template <typename Weigh>
LORAMUX_DEVICE void WeighBuckets(SamplingShared& shared, const LogitRow& row, const SearchInterval& at,
                                 const std::uint64_t (&pivots)[kSearchBuckets], const Weigh& weigh) {
  double sums[kSearchBuckets] = {};
  std::uint32_t counts[kSearchBuckets] = {};
  ForEachLogit(row, [&](std::int32_t id, float logit) {
    const std::uint64_t composite = Composite(logit, id);
    if (composite <= at.low || composite > at.high) return;
    const float weight = weigh(logit, composite);
    if (!(weight > 0)) return;
    LORAMUX_UNROLL
    for (int i = 0; i < kSearchBuckets; ++i) {
      if (composite > pivots[i]) {
        sums[i] += static_cast<double>(weight);
        ++counts[i];
      }
    }
  });
  LORAMUX_UNROLL
  for (int i = 0; i < kSearchBuckets; ++i) {
    const double sum = SumWarp(sums[i]);
    const std::uint32_t count = SumWarp(counts[i]);
    if (LaneOfWarp() == 0) {
      shared.warp_sums[i][WarpOfBlock()] = sum;
      shared.warp_counts[i][WarpOfBlock()] = count;
    }
  }
  SyncBlock();
  if (ThreadOfBlock() < kSearchBuckets) {
    const std::int32_t i = ThreadOfBlock();
    double sum = 0;
    std::uint32_t count = 0;
    for (std::int32_t warp = 0; warp < kSamplingWarps; ++warp) {
      sum += shared.warp_sums[i][warp];
      count += shared.warp_counts[i][warp];
    }
    shared.sums[i] = sum;
    shared.counts[i] = count;
  }
  SyncBlock();
}

// Goes on in the first bucket where the weight reaches the target; if none does, by rounding, in the last that is not
// empty.
LORAMUX_DEVICE SearchInterval Narrow(const SamplingShared& shared, const SearchInterval& at,
                                     const std::uint64_t (&pivots)[kSearchBuckets], double target) {
  SearchInterval to = at;
  bool reached = false;
  LORAMUX_UNROLL
  for (int i = 0; i < kSearchBuckets; ++i) {
    const double skipped = i == 0 ? 0 : shared.sums[i == 0 ? 0 : i - 1];
    const std::uint32_t skipped_count = i == 0 ? 0 : shared.counts[i == 0 ? 0 : i - 1];
    if (reached || shared.counts[i] == skipped_count) continue;
    reached = at.above + shared.sums[i] >= target;
    to.low = pivots[i];
    to.high = i == 0 ? at.high : pivots[i == 0 ? 0 : i - 1];
    to.above = at.above + skipped;
    to.above_count = at.above_count + skipped_count;
    to.count = shared.counts[i] - skipped_count;
  }
  return to;
}

// Lists the tokens in (low, high] that have a weight, best first. Returns their number. REQUIRES: they fit.
template <typename Weigh>
LORAMUX_DEVICE std::uint32_t ListTokens(SamplingShared& shared, const LogitRow& row, std::uint64_t low,
                                        std::uint64_t high, const Weigh& weigh) {
  if (ThreadOfBlock() == 0) shared.list_size = 0;
  SyncBlock();
  ForEachLogit(row, [&](std::int32_t id, float logit) {
    const std::uint64_t composite = Composite(logit, id);
    if (composite <= low || composite > high || !(weigh(logit, composite) > 0)) return;
    shared.list[AtomicAddShared(&shared.list_size, 1u)] = composite;
  });
  SyncBlock();
  const std::uint32_t n = shared.list_size;
  SortList(shared, n);
  return n;
}

// The first i where above + the weights of list[0, i] reach the target; n - 1 if none does. REQUIRES: 0 < n.
template <typename Weigh>
LORAMUX_DEVICE std::uint32_t FindInList(SamplingShared& shared, std::uint32_t n, double above, double target,
                                        const Weigh& weigh) {
  const auto weight_at = [&](std::uint32_t i) {
    return i < n ? static_cast<double>(weigh(LogitOf(shared.list[i]), shared.list[i])) : 0.0;
  };
  const std::uint32_t first = 2 * ThreadIndex();  // a thread has two neighbours
  const double weight = weight_at(first), second = weight_at(first + 1);
  const double up_to = PrefixSumWarp(weight + second);
  if (LaneOfWarp() == 31) shared.warp_sums[0][WarpOfBlock()] = up_to;
  SyncBlock();
  for (std::int32_t warp = 0; warp < WarpOfBlock(); ++warp) above += shared.warp_sums[0][warp];
  const double with_second = above + up_to;
  const double with_first = above + (up_to - second);
  std::uint32_t found = n - 1;
  if (first + 1 < n && with_second >= target) found = first + 1;
  if (first < n && with_first >= target) found = first;
  return ~static_cast<std::uint32_t>(BlockMax(shared, ~found));
}

// Finds the shortest prefix of the tokens with a weight that weighs at least `target`, or that share of all weight.
// `best` is the best token's composite; `softmax` says where to look first.
template <typename Weigh>
LORAMUX_DEVICE Prefix FindPrefix(SamplingShared& shared, const LogitRow& row, std::uint64_t best, double target,
                                 bool is_share, const DeviceSoftmax& softmax, const Weigh& weigh) {
  SearchInterval at = {0, best, 0, 0, 0};
  bool all = false;
  for (bool first = true;; first = false) {
    std::uint64_t pivots[kSearchBuckets];
    SetPivots(at, first, softmax, pivots);
    WeighBuckets(shared, row, at, pivots, weigh);
    if (first) {
      const double total = shared.sums[kSearchBuckets - 1];
      const std::uint32_t count = shared.counts[kSearchBuckets - 1];
      if (is_share) target *= total;
      all = !(total >= target);
      if (count == 0) return {0, 0};
      if (all && count > kListCapacity) return {0, -1};
      if (all) at.count = count;
    }
    if (!all) at = Narrow(shared, at, pivots, target);
    if (at.above_count + at.count <= kListCapacity) {  // the whole prefix fits
      const std::uint32_t n = ListTokens(shared, row, at.low, best, weigh);
      const std::uint32_t last = all ? n - 1 : FindInList(shared, n, 0, target, weigh);
      return {all ? 0 : shared.list[last], static_cast<std::int32_t>(last + 1)};
    }
    if (at.above_count >= kListCapacity / 2 && at.count <= kListCapacity) {
      const std::uint32_t n = ListTokens(shared, row, at.low, at.high, weigh);
      return {shared.list[FindInList(shared, n, at.above, target, weigh)], -1};
    }
  }
}

// The same within a prefix that is listed; `target` is a share of its weight.
template <typename Weigh>
LORAMUX_DEVICE Prefix FindInPrefix(SamplingShared& shared, const Prefix& prefix, double share, const Weigh& weigh) {
  const auto n = static_cast<std::uint32_t>(prefix.listed);
  double weight = 0;
  for (std::uint32_t i = ThreadIndex(); i < n; i += kSamplingThreads) {
    weight += static_cast<double>(weigh(LogitOf(shared.list[i]), shared.list[i]));
  }
  const double total = BlockSum(shared, weight);
  const std::uint32_t last = FindInList(shared, n, 0, share * total, weigh);
  return {shared.list[last], static_cast<std::int32_t>(last + 1)};
}

}  // namespace loramux::gpu
