#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/check.h"

namespace loramux {
namespace {

// 1 / base^(2 i / dim)
void DefaultFrequencies(float base, std::vector<float>& out) {
  const float dim = static_cast<float>(2 * out.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = 1.0f / std::pow(base, static_cast<float>(2 * i) / dim);
}

// Llama 3: low frequencies are divided by the factor, high ones stay unchanged, those in between are blended.
float Llama3Frequency(const RopeConfig& rope, float frequency) {
  const float context = static_cast<float>(rope.original_max_position);
  const float factor = static_cast<float>(rope.factor);
  const float low = static_cast<float>(rope.low_freq_factor);
  const float wavelength = (1.0f / frequency) * static_cast<float>(2.0 * std::numbers::pi);
  if (wavelength > static_cast<float>(rope.original_max_position / rope.low_freq_factor)) return frequency / factor;
  if (wavelength < static_cast<float>(rope.original_max_position / rope.high_freq_factor)) return frequency;
  const float band = static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  const float smooth = ((1.0f / wavelength) * context - low) / band;
  return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

// The base of dynamic NTK scaling: theta * (factor * length / max_position - (factor - 1))^(dim / (dim - 2)).
float DynamicBase(const ModelConfig& config, const RopeConfig& rope, std::int64_t length) {
  const float factor = static_cast<float>(rope.factor);
  const float theta = static_cast<float>(rope.theta);
  if (length <= config.max_position || config.head_dim <= 2) return theta;
  const float stretch = factor * static_cast<float>(length) / static_cast<float>(config.max_position) - (factor - 1.0f);
  const double dim = static_cast<double>(config.head_dim);
  return theta * std::pow(stretch, static_cast<float>(dim / (dim - 2.0)));
}

// YaRN: wavelengths that turn often in the original length stay as they are, those that hardly turn grow by the factor,
// those in between are blended.
void ScaleAsYarn(const RopeConfig& rope, std::int64_t dim, std::vector<float>& out) {
  const auto index_of = [&](double turns) {  // index of the pair that turns so often
    const double original = static_cast<double>(rope.original_max_position);
    return static_cast<double>(dim) * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = index_of(rope.beta_fast), high = index_of(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float kept = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    const float wavelength =
        std::pow(static_cast<float>(rope.theta), static_cast<float>(2 * i) / static_cast<float>(dim));
    const float slow = 1.0f / (static_cast<float>(rope.factor) * wavelength), fast = 1.0f / wavelength;
    out[i] = slow * (1.0f - kept) + fast * kept;
  }
}

void ComputeFrequencies(const ModelConfig& config, const RopeConfig& rope, std::int64_t length,
                        std::vector<float>& out) {
  using Scaling = RopeConfig::Scaling;
  const std::int64_t dim = config.RotaryDim(rope);
  out.resize(static_cast<std::size_t>(dim / 2));
  const bool dynamic = rope.scaling == Scaling::kDynamic;
  DefaultFrequencies(dynamic ? DynamicBase(config, rope, length) : static_cast<float>(rope.theta), out);
  for (float& frequency : out) {
    if (rope.scaling == Scaling::kLinear) frequency /= static_cast<float>(rope.factor);
    if (rope.scaling == Scaling::kLlama3) frequency = Llama3Frequency(rope, frequency);
  }
  if (rope.scaling == Scaling::kProportional) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<std::int64_t>(i) < rope.turning_pairs ? out[i] / static_cast<float>(rope.factor) : 0.0f;
    }
  }
  if (rope.scaling == Scaling::kYarn) ScaleAsYarn(rope, dim, out);
  if (rope.scaling != Scaling::kLongRope) return;
  const std::vector<double>& factors = length > rope.original_max_position ? rope.long_factors : rope.short_factors;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float wavelength =
        std::pow(static_cast<float>(rope.theta), static_cast<float>(2 * i) / static_cast<float>(dim));
    out[i] = 1.0f / (static_cast<float>(factors[i]) * wavelength);
  }
}

}  // namespace

std::vector<float> RopeInverseFrequencies(const ModelConfig& config, const RopeConfig& rope, std::int64_t length) {
  std::vector<float> frequencies;
  ComputeFrequencies(config, rope, length, frequencies);
  return frequencies;
}

RopeTable::RopeTable(const ModelConfig& config, const RopeConfig& rope)
    : config_(config),
      rope_(rope),
      half_dim_(config.RotaryDim(rope) / 2),
      dynamic_from_(config.TurnsAlikeUpTo(rope)),
      frequencies_(RopeInverseFrequencies(config, rope, 0)),
      dynamic_frequencies_(frequencies_) {}

void RopeTable::Reserve(std::int64_t positions) {
  // Dynamic rows are never kept.
  table_.reserve(static_cast<std::size_t>(std::min(positions, dynamic_from_) * 2 * half_dim_));
}

void RopeTable::Extend(std::int64_t positions) {
  table_.resize(static_cast<std::size_t>(positions * 2 * half_dim_));
  for (; positions_ < positions; ++positions_) {
    float* row = table_.data() + positions_ * 2 * half_dim_;
    ComputeRow(frequencies_, positions_, row, row + half_dim_);
  }
}

void RopeTable::ComputeRow(const std::vector<float>& frequencies, std::int64_t position, float* cos, float* sin) const {
  const float factor = static_cast<float>(rope_.attention_factor);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float angle = static_cast<float>(position) * frequencies[i];
    cos[i] = std::cos(angle) * factor;
    sin[i] = std::sin(angle) * factor;
  }
}

void RopeTable::Row(std::int64_t position, std::int64_t length, float* cos, float* sin) {
  CHECK(position >= 0 && position < length);
  if (length > dynamic_from_) {
    // A prompt's rows share one length, so the frequencies are kept from row to row.
    if (length != dynamic_length_) ComputeFrequencies(config_, rope_, dynamic_length_ = length, dynamic_frequencies_);
    ComputeRow(dynamic_frequencies_, position, cos, sin);
    return;
  }
  if (position >= positions_) Extend(position + 1);
  const float* row = table_.data() + position * 2 * half_dim_;
  const std::size_t bytes = static_cast<std::size_t>(half_dim_) * sizeof(float);
  std::memcpy(cos, row, bytes);
  std::memcpy(sin, row + half_dim_, bytes);
}

}  // namespace loramux
