// Random draws from the distributions that workloads use. They take a seeded generator and give the same numbers on
// every platform.
#pragma once

#include <cstdint>
#include <vector>

#include "base/prng.h"

namespace loramux {

// A distribution of a given shape is known by its mean or by its scale: a gamma's mean is shape * scale, a Weibull's is
// scale * Gamma(1 + 1 / shape). Two types, so that a call says which it gives.
struct Mean {
  double value = 1;
};
struct Scale {
  double value = 1;
};

// `mean`: 1 / rate.
double DrawExponential(Prng& prng, double mean);
double DrawNormal(Prng& prng);  // mean 0, standard deviation 1
// `shape` determines the burstiness; 1 is the exponential distribution. REQUIRES: shape > 0, scale or mean > 0.
double DrawGamma(Prng& prng, double shape, Scale scale);
double DrawGamma(Prng& prng, double shape, Mean mean);
double DrawWeibull(Prng& prng, double shape, Scale scale);
double DrawWeibull(Prng& prng, double shape, Mean mean);
// `cv`: coefficient of variation (standard deviation over mean); 0: always the mean
double DrawLogNormal(Prng& prng, double mean, double cv);

// Chooses index i with a probability proportional to weights[i].
class WeightedChoice {
 public:
  // REQUIRES: `weights` not empty, no weight negative, their sum positive.
  explicit WeightedChoice(const std::vector<double>& weights);
  std::size_t At(double unit) const;                                    // the choice for a uniform number in [0, 1)
  std::size_t Draw(Prng& prng) const { return At(prng.NextDouble()); }  // one choice

 private:
  std::vector<double> cumulative_;
};

// Weights of a power law (Zipf's): 1 / (i + 1)^exponent. Exponent 0: all equal.
std::vector<double> PowerLaw(std::size_t count, double exponent);

}  // namespace loramux
