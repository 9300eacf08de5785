#include "workload/distributions.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace loramux {

double DrawExponential(Prng& prng, double mean) { return -mean * std::log1p(-prng.NextDouble()); }

// The Box-Muller method. The pair's second number is not used, so that each draw consumes exactly two uniform numbers.
double DrawNormal(Prng& prng) {
  const double radius = std::sqrt(-2 * std::log1p(-prng.NextDouble()));
  return radius * std::cos(2 * std::numbers::pi * prng.NextDouble());
}

// Marsaglia and Tsang 2000; for a shape below 1, with their power of a uniform number.
double DrawGamma(Prng& prng, double shape, Scale scale) {
  CHECK(shape > 0 && scale.value > 0);
  if (shape < 1) {
    const double factor = std::pow(1 - prng.NextDouble(), 1 / shape);
    return DrawGamma(prng, shape + 1, scale) * factor;
  }
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = DrawNormal(prng), v = std::pow(1 + c * x, 3);
    if (v <= 0) continue;
    const double u = 1 - prng.NextDouble();
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v * scale.value;
  }
}

double DrawGamma(Prng& prng, double shape, Mean mean) { return DrawGamma(prng, shape, Scale{mean.value / shape}); }

double DrawWeibull(Prng& prng, double shape, Scale scale) {
  CHECK(shape > 0 && scale.value > 0);
  return scale.value * std::pow(-std::log1p(-prng.NextDouble()), 1 / shape);
}

double DrawWeibull(Prng& prng, double shape, Mean mean) {
  return DrawWeibull(prng, shape, Scale{mean.value / std::tgamma(1.0 + 1.0 / shape)});
}

double DrawLogNormal(Prng& prng, double mean, double cv) {
  if (cv <= 0) return mean;
  const double variance = std::log1p(cv * cv);
  return mean * std::exp(std::sqrt(variance) * DrawNormal(prng) - variance / 2);
}

WeightedChoice::WeightedChoice(const std::vector<double>& weights) {
  double sum = 0;
  for (const double weight : weights) {
    CHECK(weight >= 0);
    cumulative_.push_back(sum += weight);
  }
  CHECK(sum > 0);
  for (double& value : cumulative_) value /= sum;
}

std::size_t WeightedChoice::At(double unit) const {
  const auto found = std::upper_bound(cumulative_.begin(), cumulative_.end(), unit);
  return std::min<std::size_t>(static_cast<std::size_t>(found - cumulative_.begin()), cumulative_.size() - 1);
}

std::vector<double> PowerLaw(std::size_t count, double exponent) {
  std::vector<double> weights;
  for (std::size_t i = 1; i <= count; ++i) weights.push_back(std::pow(static_cast<double>(i), -exponent));
  return weights;
}

}  // namespace loramux
