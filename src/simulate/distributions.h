// Random numbers of the distributions that workloads are made of, from a seeded generator: the same on every platform.
#pragma once

#include <cstdint>
#include <vector>

#include "base/prng.h"

namespace loramux {

double DrawExponential(Prng& prng, double mean);
double DrawNormal(Prng& prng);                             // mean 0, standard deviation 1
double DrawGamma(Prng& prng, double shape, double scale);  // REQUIRES: both > 0
double DrawWeibull(Prng& prng, double shape, double scale);
// cv: standard deviation over mean; 0: always the mean
double DrawLogNormal(Prng& prng, double mean, double cv);

// Index i with a probability in proportion to weights[i].
class WeightedChoice {
 public:
  // REQUIRES: not empty, no weight below 0, their sum above 0.
  explicit WeightedChoice(const std::vector<double>& weights);
  std::size_t At(double unit) const;  // of a uniform number in [0, 1)

 private:
  std::vector<double> cumulative_;
};

// 1 / (i + 1)^exponent; exponent 0: all alike.
std::vector<double> PowerLaw(std::size_t count, double exponent);

}  // namespace loramux
