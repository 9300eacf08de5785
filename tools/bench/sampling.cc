#include "tools/bench/sampling.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <optional>

#include <fmt/format.h>

namespace loramux::load {
namespace {

constexpr std::int64_t kMaxLength = 10'000'000;

// Uniform in (0, 1], so that its logarithm is finite.
double DrawOpen(Prng& prng) { return 1.0 - prng.NextDouble(); }

double DrawNormal(Prng& prng) {  // Box and Muller 1958
  const double radius = std::sqrt(-2.0 * std::log(DrawOpen(prng)));
  return radius * std::cos(2.0 * std::numbers::pi * prng.NextDouble());
}

// Marsaglia and Tsang 2000, with scale 1. REQUIRES: shape >= 1.
double DrawGammaOfLargeShape(Prng& prng, double shape) {
  const double d = shape - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
  while (true) {
    const double x = DrawNormal(prng);
    const double v = std::pow(1.0 + c * x, 3);
    if (v > 0 && std::log(DrawOpen(prng)) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

std::optional<std::int64_t> ParseLength(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMaxLength) return std::nullopt;
  return value;
}

}  // namespace

double DrawExponential(Prng& prng, double mean) { return -mean * std::log(DrawOpen(prng)); }

double DrawGamma(Prng& prng, double shape, double mean) {
  double value = DrawGammaOfLargeShape(prng, shape < 1 ? shape + 1 : shape);
  if (shape < 1) value *= std::pow(DrawOpen(prng), 1.0 / shape);
  return value * mean / shape;
}

double DrawWeibull(Prng& prng, double shape, double mean) {
  const double scale = mean / std::tgamma(1.0 + 1.0 / shape);
  return scale * std::pow(-std::log(DrawOpen(prng)), 1.0 / shape);
}

ZipfPicker::ZipfPicker(std::size_t count, double exponent) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) cumulative_.push_back(sum += std::pow(static_cast<double>(i + 1), -exponent));
}

std::size_t ZipfPicker::Draw(Prng& prng) const {
  const double point = prng.NextDouble() * cumulative_.back();
  const auto at = std::upper_bound(cumulative_.begin(), cumulative_.end(), point);
  return std::min<std::size_t>(static_cast<std::size_t>(at - cumulative_.begin()), cumulative_.size() - 1);
}

Result<LengthDistribution> LengthDistribution::Parse(std::string_view text, const std::string& flag) {
  const Error error = InvalidArgument(
      fmt::format("{}: expected a number of tokens from 1 to {}, uniform:LOW:HIGH or exponential:MEAN, found '{}'",
                  flag, kMaxLength, text));
  LengthDistribution result;
  const auto colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  std::string_view rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  std::optional<std::int64_t> low, high;
  if (colon == std::string_view::npos) {
    low = high = ParseLength(name);
  } else if (name == "exponential") {
    result.kind_ = Kind::kExponential;
    low = high = ParseLength(rest);
  } else if (name == "uniform") {
    result.kind_ = Kind::kUniform;
    const auto second = rest.find(':');
    low = ParseLength(rest.substr(0, second));
    if (second != std::string_view::npos) high = ParseLength(rest.substr(second + 1));
  }
  if (!low || !high || *low > *high) return error;
  result.low_ = *low;
  result.high_ = *high;
  return result;
}

std::int64_t LengthDistribution::Draw(Prng& prng) const {
  switch (kind_) {
    case Kind::kFixed:
      return low_;
    case Kind::kUniform:
      return low_ + static_cast<std::int64_t>(prng.NextBelow(static_cast<std::uint64_t>(high_ - low_ + 1)));
    case Kind::kExponential:
      break;
  }
  return std::clamp<std::int64_t>(std::llround(DrawExponential(prng, static_cast<double>(low_))), 1, kMaxLength);
}

}  // namespace loramux::load
