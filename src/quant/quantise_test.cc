#include "quant/quantise.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "tensor/half_float.h"

namespace loramux::quantise_test {
namespace {

// Like a layer's weights: sums of uniform numbers.
std::vector<float> Weights(std::int64_t count, float size, Prng& prng) {
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& value : out) {
    double sum = 0;
    for (int i = 0; i < 6; ++i) sum += prng.NextDouble() - 0.5;
    value = static_cast<float>(sum) * size;
  }
  return out;
}

// Root of the mean square error, relative to that of the values.
double RelativeError(const std::vector<float>& values, const GroupedRows& rows) {
  double errors = 0, squares = 0;
  std::vector<float> row(static_cast<std::size_t>(rows.columns));
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    rows.ReadRow(r, row.data());
    for (std::int64_t t = 0; t < rows.columns; ++t) {
      const auto value = static_cast<double>(values[static_cast<std::size_t>(r * rows.columns + t)]);
      const double error = static_cast<double>(row[static_cast<std::size_t>(t)]) - value;
      errors += error * error;
      squares += value * value;
    }
  }
  return std::sqrt(errors / squares);
}

TEST(Quantise, ErrorsAreThoseOfTheBits) {
  Prng prng(1);
  for (const float size : {1e-3f, 0.03f, 50.0f}) {
    const std::vector<float> values = Weights(64 * 256, size, prng);
    // Uniform rounding of a group of 32 such values costs 0.5 % and 7.5 %.
    EXPECT_LT(RelativeError(values, Quantise(WeightFormat::kQ8, values.data(), 64, 256)), 6e-3) << size;
    EXPECT_LT(RelativeError(values, Quantise(WeightFormat::kQ4, values.data(), 64, 256)), 7.4e-2) << size;
  }
}

// What the search is for: less error than the range of the values divided evenly.
TEST(Quantise, FourBitsAreBetterThanAnEvenDivision) {
  Prng prng(2);
  const std::vector<float> values = Weights(64 * 256, 0.1f, prng);
  GroupedRows even(WeightFormat::kQ4, 64, 256);
  for (std::int64_t g = 0; g < 64 * 8; ++g) {
    const auto first = values.begin() + g * kWeightGroup;
    const auto [low, high] = std::minmax_element(first, first + kWeightGroup);
    const auto at = static_cast<std::size_t>(g);
    even.scales[at] = F16ToF32(F32ToF16((*high - *low) / 15));
    even.minimums[at] = F16ToF32(F32ToF16(*low));
    for (std::int64_t t = 0; t < kWeightGroup; ++t) {
      const float code = std::nearbyint((first[t] - even.minimums[at]) / even.scales[at]);
      even.codes[static_cast<std::size_t>(g * kWeightGroup + t)] =
          static_cast<std::uint8_t>(std::clamp(code, 0.f, 15.f));
    }
  }
  const double searched = RelativeError(values, Quantise(WeightFormat::kQ4, values.data(), 64, 256));
  EXPECT_LT(searched, 0.95 * RelativeError(values, even));
}

TEST(Quantise, WhatFitsIsKeptExactly) {
  for (const WeightFormat format : {WeightFormat::kQ8, WeightFormat::kQ4}) {
    std::vector<float> values;
    const int most = format == WeightFormat::kQ8 ? 127 : 15, least = format == WeightFormat::kQ8 ? -127 : 0;
    for (int i = 0; i < 32; ++i) values.push_back(0.25f * static_cast<float>(least + i * (most - least) / 31));
    const GroupedRows rows = Quantise(format, values.data(), 1, 32);
    std::vector<float> back(32);
    rows.ReadRow(0, back.data());
    EXPECT_EQ(back, values) << WeightFormatName(format);
  }
}

TEST(Quantise, ConstantsZerosAndShortGroups) {
  for (const WeightFormat format : {WeightFormat::kQ8, WeightFormat::kQ4}) {
    for (const float value : {0.0f, 0.5f, -0.5f}) {
      const std::vector<float> values(33, value);
      const GroupedRows rows = Quantise(format, values.data(), 1, 33);
      std::vector<float> back(33);
      rows.ReadRow(0, back.data());
      for (const float found : back) EXPECT_NEAR(found, value, 2e-4f) << WeightFormatName(format);
    }
  }
}

TEST(Quantise, TinyGroupsAreNotClipped) {
  for (const float largest : {1.1e-5f, 3e-6f, 1e-4f}) {
    std::vector<float> values(32);
    for (int i = 0; i < 32; ++i) values[static_cast<std::size_t>(i)] = largest * static_cast<float>(i) / 31;
    const GroupedRows rows = Quantise(WeightFormat::kQ8, values.data(), 1, 32);
    std::vector<float> back(32);
    rows.ReadRow(0, back.data());
    for (std::size_t i = 0; i < 32; ++i) EXPECT_NEAR(back[i], values[i], largest / 254 + 3.1e-8f) << largest;
  }
}

TEST(Quantise, WhatFloat16CannotHoldIsNoNumber) {
  std::vector<float> values(32, 1e7f);
  values[3] = -1e7f;
  for (const WeightFormat format : {WeightFormat::kQ8, WeightFormat::kQ4}) {
    const GroupedRows rows = Quantise(format, values.data(), 1, 32);
    std::vector<float> back(32);
    rows.ReadRow(0, back.data());
    EXPECT_TRUE(std::isnan(back[0])) << WeightFormatName(format);
  }
}

TEST(Quantise, AGroupThatIsNotFiniteSaysSo) {
  std::vector<float> values(64, 0.5f);
  values[40] = std::numeric_limits<float>::infinity();
  for (const WeightFormat format : {WeightFormat::kQ8, WeightFormat::kQ4}) {
    const GroupedRows rows = Quantise(format, values.data(), 1, 64);
    std::vector<float> back(64);
    rows.ReadRow(0, back.data());
    EXPECT_FALSE(std::isnan(back[0]));
    EXPECT_TRUE(std::isnan(back[40]));
  }
}

}  // namespace
}  // namespace loramux::quantise_test
