// Random draws for load: intervals between arrivals, lengths, and adapters. All randomness comes from the given Prng.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "base/result.h"

namespace loramux::load {

// Draw one interval with mean `mean`. `shape` determines the burstiness; 1 is the exponential distribution. REQUIRES:
// mean > 0, shape > 0.
double DrawExponential(Prng& prng, double mean);
double DrawGamma(Prng& prng, double shape, double mean);
double DrawWeibull(Prng& prng, double shape, double mean);

// Draws index i of [0, count) with probability proportional to 1 / (i + 1)^exponent. Exponent 0 is uniform.
class ZipfPicker {
 public:
  // REQUIRES: count > 0, exponent >= 0.
  ZipfPicker(std::size_t count, double exponent);
  std::size_t Draw(Prng& prng) const;

 private:
  std::vector<double> cumulative_;
};

// A distribution of token counts: "128", "uniform:64:256" (both ends included) or "exponential:128" (the mean; draws
// are at least 1).
class LengthDistribution {
 public:
  // Parses one of these forms. The error names `flag`.
  static Result<LengthDistribution> Parse(std::string_view text, const std::string& flag);
  // Returns one draw.
  std::int64_t Draw(Prng& prng) const;

 private:
  enum class Kind { kFixed, kUniform, kExponential };
  Kind kind_ = Kind::kFixed;
  std::int64_t low_ = 1, high_ = 1;  // kFixed and kExponential use low_
};

}  // namespace loramux::load
