#include "tensor/int8_kv.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace loramux::int8_kv_test {
namespace {

Int8KvScale ScaleOf(const std::vector<float>& x) {
  std::int32_t most = 0;
  for (const float value : x) most = std::max(most, MagnitudeBits(value));
  return ScaleOfInt8Kv(most);
}

TEST(Int8Kv, EachElementIsOffByHalfAStepAtMost) {
  Prng prng(1);
  for (const float magnitude : {1e-30f, 1e-3f, 1.0f, 77.0f, 1e5f, 1e38f}) {
    for (int round = 0; round < 200; ++round) {
      std::vector<float> x(64);
      for (float& value : x) value = magnitude * static_cast<float>(2 * prng.NextDouble() - 1);
      const Int8KvScale scale = ScaleOf(x);
      const double step = BF16ToF32(scale.bf16);
      double most = 0;
      for (const float value : x) most = std::max(most, std::abs(static_cast<double>(value)));
      // bf16 has 8 significant bits, and rounding up costs less than one unit of the last.
      EXPECT_GE(step * (1 + 1e-6), most / 127);
      EXPECT_LE(step, most / 127 * (1 + 0x1p-7) * (1 + 1e-6));
      for (const float value : x) {
        const int integer = ToInt8Kv(value, scale.inverse);
        EXPECT_GE(integer, -127);
        EXPECT_LE(std::abs(integer * step - value), step / 2 * (1 + 1e-4)) << value << " of " << most;
      }
    }
  }
}

TEST(Int8Kv, TheLargestElementIsKeptToAPercent) {
  const std::vector<float> x = {0.5f, -254.0f, 3.0f};  // 254 / 127 is exact in bf16
  const Int8KvScale scale = ScaleOf(x);
  EXPECT_EQ(BF16ToF32(scale.bf16), 2.0f);
  EXPECT_EQ(ToInt8Kv(x[0], scale.inverse), 0);
  EXPECT_EQ(ToInt8Kv(x[1], scale.inverse), -127);
  EXPECT_EQ(ToInt8Kv(x[2], scale.inverse), 2);  // 1.5, to even
}

TEST(Int8Kv, ZerosAndTheSmallestNumbersBecomeZero) {
  for (const float value : {0.0f, -0.0f, 1e-45f, -1e-37f}) {
    const Int8KvScale scale = ScaleOf({value, 0.0f});
    EXPECT_EQ(scale.bf16, 0);
    EXPECT_EQ(ToInt8Kv(value, scale.inverse), 0);
  }
}

TEST(Int8Kv, WhatIsNotFiniteShows) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    const Int8KvScale scale = ScaleOf({1.0f, value, 3.0f});
    EXPECT_TRUE(std::isnan(BF16ToF32(scale.bf16) * ToInt8Kv(1.0f, scale.inverse)));
  }
}

TEST(Int8Kv, TheLargestFloatHasAFiniteScale) {
  const float most = std::numeric_limits<float>::max();
  const Int8KvScale scale = ScaleOf({most, -most});
  const int integer = ToInt8Kv(-most, scale.inverse);
  EXPECT_NEAR(integer * static_cast<double>(BF16ToF32(scale.bf16)), -most, most / 127.0);
}

}  // namespace
}  // namespace loramux::int8_kv_test
