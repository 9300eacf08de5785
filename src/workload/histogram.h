// A histogram of durations with buckets of constant ratio. Percentiles are exact to 0.8 % in constant memory, even with
// one value per token.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <memory>

#include "base/clock.h"

namespace loramux {

// A histogram of nanoseconds. Not thread-safe.
class DurationHistogram {
 public:
  // REQUIRES: value >= 0, in nanoseconds.
  void Add(TimeNs value) {
    ++counts_[BucketOf(static_cast<std::uint64_t>(value))];
    ++count_;
    sum_ += static_cast<double>(value);
  }
  std::int64_t count() const { return count_; }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }  // ns
  // In ns; 0 if empty. REQUIRES: 0 <= q <= 1.
  double Quantile(double q) const {
    const double wanted = q * static_cast<double>(count_);
    std::int64_t seen = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (counts_[i] > 0 && static_cast<double>(seen) >= wanted) return MiddleOf(i);
    }
    return 0;
  }

 private:
  static constexpr int kBits = 6;  // each power of two has 2^kBits buckets
  static constexpr std::size_t kPerPower = std::size_t{1} << kBits;
  static std::size_t BucketOf(std::uint64_t value) {
    if (value < kPerPower) return static_cast<std::size_t>(value);
    const int shift = std::bit_width(value) - 1 - kBits;
    return static_cast<std::size_t>(shift) * kPerPower + static_cast<std::size_t>(value >> shift);
  }
  static double MiddleOf(std::size_t bucket) {
    if (bucket < 2 * kPerPower) return static_cast<double>(bucket);
    const std::size_t shift = bucket / kPerPower - 1, head = bucket % kPerPower + kPerPower;
    return (static_cast<double>(head) + 0.5) * static_cast<double>(std::uint64_t{1} << shift);
  }

  std::array<std::int64_t, (64 - kBits + 1)* kPerPower> counts_ = {};
  std::int64_t count_ = 0;
  double sum_ = 0;
};

}  // namespace loramux
