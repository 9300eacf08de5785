// Random draws for load: intervals between arrivals, lengths, and which adapter is asked. All from an injected Prng.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "base/result.h"

namespace loramux::load {

// REQUIRES for all: mean, shape > 0. The mean of each draw is `mean`; `shape` decides how bursty it is (1:
// exponential).
double DrawExponential(Prng& prng, double mean);
double DrawGamma(Prng& prng, double shape, double mean);
double DrawWeibull(Prng& prng, double shape, double mean);

// Index i of [0, count) with a probability in proportion to 1 / (i + 1)^exponent. Exponent 0 is uniform.
class ZipfPicker {
 public:
  // REQUIRES: count > 0, exponent >= 0.
  ZipfPicker(std::size_t count, double exponent);
  std::size_t Draw(Prng& prng) const;

 private:
  std::vector<double> cumulative_;
};

// How many tokens: "128", "uniform:64:256" (both ends included) or "exponential:128" (the mean; at least 1 token).
class LengthDistribution {
 public:
  // `flag` is named in the error.
  static Result<LengthDistribution> Parse(std::string_view text, const std::string& flag);
  std::int64_t Draw(Prng& prng) const;

 private:
  enum class Kind { kFixed, kUniform, kExponential };
  Kind kind_ = Kind::kFixed;
  std::int64_t low_ = 1, high_ = 1;  // fixed and exponential use low_
};

}  // namespace loramux::load
