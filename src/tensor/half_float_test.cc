#include "tensor/half_float.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace loramux::half_float_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(F8E4M3, EveryCodeIsKeptAndNumbersBetweenGoToTheNearer) {
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    const float value = F8E4M3ToF32(bits);
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(F8E4M3ToF32(F32ToF8E4M3(value))));
      continue;
    }
    EXPECT_EQ(F32ToF8E4M3(value), bits) << code;
    if ((code & 0x7f) >= 0x7e) continue;
    const float next = F8E4M3ToF32(static_cast<std::uint8_t>(code + 1)), middle = (value + next) / 2;
    EXPECT_EQ(F32ToF8E4M3(middle), code % 2 == 0 ? bits : bits + 1) << code;  // ties to even
    EXPECT_EQ(F32ToF8E4M3(middle + (next - value) / 16), bits + 1) << code;
    EXPECT_EQ(F32ToF8E4M3(middle - (next - value) / 16), bits) << code;
  }
  EXPECT_EQ(F8E4M3ToF32(0x38), 1.0f);
  EXPECT_EQ(F8E4M3ToF32(0x01), 0x1.0p-9f);
  EXPECT_EQ(F8E4M3ToF32(0x08), 0x1.0p-6f);
  EXPECT_EQ(F8E4M3ToF32(0xfe), -448.0f);
  EXPECT_EQ(F32ToF8E4M3(1e30f), 0x7e);
  EXPECT_EQ(F32ToF8E4M3(-std::numeric_limits<float>::infinity()), 0xfe);
  EXPECT_EQ(F32ToF8E4M3(-0.0f), 0x80);
}

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
