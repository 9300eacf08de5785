#include "tensor/half_float.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace loramux::half_float_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(HalfFloat, BF16RoundTripsEveryPattern) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const float value = BF16ToF32(pattern);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(BF16ToF32(F32ToBF16(value))));
    } else {
      EXPECT_EQ(F32ToBF16(value), pattern);
    }
  }
}

TEST(HalfFloat, F16RoundTripsEveryPattern) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const float value = F16ToF32(pattern);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(value))));
    } else {
      EXPECT_EQ(F32ToF16(value), pattern) << value;
    }
  }
}

TEST(HalfFloat, F16KnownValues) {
  EXPECT_EQ(F16ToF32(0x3c00), 1.0f);
  EXPECT_EQ(F16ToF32(0xc000), -2.0f);
  EXPECT_EQ(F16ToF32(0x7bff), 65504.0f);
  EXPECT_EQ(F16ToF32(0x0001), 0x1.0p-24f);
  EXPECT_EQ(F16ToF32(0x0400), 0x1.0p-14f);
  EXPECT_EQ(F16ToF32(0x7c00), kInfinity);
  EXPECT_TRUE(std::signbit(F16ToF32(0x8000)));
}

// Every midpoint between neighbours rounds to the even one; a value just beside it rounds to the nearer one.
template <typename Widen, typename Narrow>
void CheckRounding(std::uint16_t last_finite, Widen widen, Narrow narrow) {
  for (std::uint32_t bits = 0; bits < last_finite; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits);
    const auto high = static_cast<std::uint16_t>(bits + 1);
    const float middle = static_cast<float>((static_cast<double>(widen(low)) + widen(high)) / 2);
    EXPECT_EQ(narrow(middle), (bits & 1) == 0 ? low : high);
    EXPECT_EQ(narrow(std::nextafter(middle, 0.0f)), low);
    EXPECT_EQ(narrow(std::nextafter(middle, kInfinity)), high);
  }
}

TEST(HalfFloat, BF16RoundsToNearestEven) { CheckRounding(0x7f7f, BF16ToF32, F32ToBF16); }
TEST(HalfFloat, F16RoundsToNearestEven) { CheckRounding(0x7bff, F16ToF32, F32ToF16); }

TEST(HalfFloat, OverflowGivesInfinity) {
  EXPECT_EQ(F16ToF32(F32ToF16(65519.99f)), 65504.0f);
  EXPECT_EQ(F16ToF32(F32ToF16(65520.0f)), kInfinity);
  EXPECT_EQ(F16ToF32(F32ToF16(-1e9f)), -kInfinity);
  EXPECT_EQ(BF16ToF32(F32ToBF16(std::numeric_limits<float>::max())), kInfinity);
}

TEST(HalfFloat, ArraysMayBeUnaligned) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    std::byte bytes[17] = {};
    for (std::int64_t i = 0; i < 4; ++i) StoreFromF32(dtype, bytes + 1, i, 0.5f * static_cast<float>(i));
    for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(LoadAsF32(dtype, bytes + 1, i), 0.5f * static_cast<float>(i));
  }
}

}  // namespace
}  // namespace loramux::half_float_test
