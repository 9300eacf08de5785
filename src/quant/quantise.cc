#include "quant/quantise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "base/check.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

constexpr auto kGroup = static_cast<std::size_t>(kWeightGroup);
using Group = std::array<float, kGroup>;

float ToHalfAndBack(float value) { return F16ToF32(F32ToF16(value)); }

// The least float16 that is not below `value`. REQUIRES: value >= 0.
float HalfAtLeast(float value) {
  const std::uint16_t bits = F32ToF16(value);
  return F16ToF32(F16ToF32(bits) < value ? static_cast<std::uint16_t>(bits + 1) : bits);
}

// To nearest, ties to even, for |value| < 2^22; a loop of it becomes vector code.
float Round(float value) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
  return (value + kShift) - kShift;
}

struct Affine {
  float scale = 0, minimum = 0;
};

void MakeNotANumber(GroupedRows& out, std::int64_t row, std::int64_t group) {
  out.ScalesOf(row)[group] = std::numeric_limits<float>::quiet_NaN();
  out.MinimumsOf(row)[group] = 0;
}

void QuantiseTo8Bits(const Group& values, GroupedRows& out, std::int64_t row, std::int64_t group) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  // Rounded to nearest, unless that clipped the largest value by more than half a step.
  const float nearest = ToHalfAndBack(largest / 127.0f);
  const float scale = nearest * 127.5f < largest ? HalfAtLeast(largest / 127.0f) : nearest;
  if (!std::isfinite(scale)) return MakeNotANumber(out, row, group);
  out.ScalesOf(row)[group] = scale;
  out.MinimumsOf(row)[group] = -static_cast<float>(kQ8Zero) * scale;
  if (scale == 0) return;
  std::uint8_t* const codes = out.CodesOf(row) + group * kWeightGroup;
  for (std::size_t t = 0; t < kGroup; ++t) {
    const float code = std::clamp(Round(values[t] / scale), -127.0f, 127.0f);
    codes[t] = static_cast<std::uint8_t>(static_cast<int>(code) + kQ8Zero);
  }
}

constexpr float kMost4 = 15;

// The codes of a group for a scale and a minimum, as floats.
void Codes(const Group& values, Affine map, Group& codes) {
  const float inverse = map.scale > 0 && std::isfinite(map.scale) ? 1 / map.scale : 0.0f;
  for (std::size_t t = 0; t < kGroup; ++t) {
    codes[t] = std::clamp(Round((values[t] - map.minimum) * inverse), 0.0f, kMost4);
  }
}

float WeightedError(const Group& values, const Group& weights, const Group& codes, Affine map) {
  float error = 0;
  for (std::size_t t = 0; t < kGroup; ++t) {
    const float difference = map.scale * codes[t] + map.minimum - values[t];
    error += weights[t] * difference * difference;
  }
  return error;
}

// The scale and minimum with the least weighted error for given codes.
Affine LeastSquares(const Group& values, const Group& weights, const Group& codes, Affine otherwise) {
  float w = 0, c = 0, cc = 0, v = 0, cv = 0;
  for (std::size_t t = 0; t < kGroup; ++t) {
    const float wc = weights[t] * codes[t];
    w += weights[t];
    c += wc;
    cc += wc * codes[t];
    v += weights[t] * values[t];
    cv += wc * values[t];
  }
  const float determinant = w * cc - c * c;
  if (!(determinant > 1e-6f * w * cc)) return otherwise;
  const Affine map = {(w * cv - c * v) / determinant, (cc * v - c * cv) / determinant};
  return map.scale > 0 ? map : otherwise;
}

Affine Rounded(Affine map) { return {ToHalfAndBack(map.scale), ToHalfAndBack(map.minimum)}; }

// Tries ranges around that of the values: a range that clips the outermost values a little may serve the others better.
Affine BestAffine(const Group& values, const Group& weights) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const float range = *high - *low;
  Affine best = Rounded({range / kMost4, *low});
  Group codes;
  Codes(values, best, codes);
  float least = WeightedError(values, weights, codes, best);
  constexpr int kTries = 12;
  for (int i = 0; i < kTries; ++i) {
    const float levels = kMost4 - 1.2f + 0.2f * static_cast<float>(i);
    Affine map = {range / levels, *low};
    Codes(values, map, codes);
    for (int turn = 0; turn < 2; ++turn) {
      map = LeastSquares(values, weights, codes, map);
      Codes(values, map, codes);
    }
    map = Rounded(map);
    Codes(values, map, codes);
    const float error = WeightedError(values, weights, codes, map);
    if (error < least) {
      least = error;
      best = map;
    }
  }
  return best;
}

void QuantiseTo4Bits(const Group& values, std::size_t count, GroupedRows& out, std::int64_t row, std::int64_t group) {
  float squares = 0;
  for (const float value : values) squares += value * value;
  const float mean = squares / static_cast<float>(count);
  Group weights = {};
  for (std::size_t t = 0; t < count; ++t) weights[t] = mean + values[t] * values[t];
  if (mean == 0) return;
  const Affine map = BestAffine(values, weights);
  if (!std::isfinite(map.scale) || !std::isfinite(map.minimum)) return MakeNotANumber(out, row, group);
  Group codes;
  Codes(values, map, codes);
  out.ScalesOf(row)[group] = map.scale;
  out.MinimumsOf(row)[group] = map.minimum;
  std::transform(codes.begin(), codes.end(), out.CodesOf(row) + group * kWeightGroup,
                 [](float code) { return static_cast<std::uint8_t>(code); });
}

}  // namespace

GroupedRows Quantise(WeightFormat format, const float* values, std::int64_t rows, std::int64_t columns) {
  GroupedRows out(format, rows, columns);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t group = 0; group < out.groups(); ++group) {
      const float* const from = values + row * columns + group * kWeightGroup;
      const auto count = static_cast<std::size_t>(std::min(kWeightGroup, columns - group * kWeightGroup));
      Group padded;
      std::copy_n(from, count, padded.begin());
      std::fill(padded.begin() + static_cast<std::ptrdiff_t>(count), padded.end(), from[0]);
      if (!std::all_of(padded.begin(), padded.end(), [](float value) { return std::isfinite(value); })) {
        MakeNotANumber(out, row, group);
      } else if (format == WeightFormat::kQ8) {
        QuantiseTo8Bits(padded, out, row, group);
      } else {
        QuantiseTo4Bits(padded, count, out, row, group);
      }
    }
  }
  return out;
}

}  // namespace loramux
