// Random draws from the distributions that workloads use. They take a seeded generator and give the same numbers on
// every platform.
#pragma once

#include <cstdint>
#include <vector>

#include "base/prng.h"

namespace loramux {

// `mean`: 1 / rate.
double DrawExponential(Prng& prng, double mean);
double DrawNormal(Prng& prng);                             // mean 0, standard deviation 1
double DrawGamma(Prng& prng, double shape, double scale);  // REQUIRES: both > 0
double DrawWeibull(Prng& prng, double shape, double scale);
// `cv`: coefficient of variation (standard deviation over mean); 0: always the mean
double DrawLogNormal(Prng& prng, double mean, double cv);

// Chooses index i with a probability proportional to weights[i].
class WeightedChoice {
 public:
  // REQUIRES: `weights` not empty, no weight negative, their sum positive.
  explicit WeightedChoice(const std::vector<double>& weights);
  std::size_t At(double unit) const;  // the choice for a uniform number in [0, 1)

 private:
  std::vector<double> cumulative_;
};

// Weights of a power law: 1 / (i + 1)^exponent. Exponent 0: all equal.
std::vector<double> PowerLaw(std::size_t count, double exponent);

}  // namespace loramux
