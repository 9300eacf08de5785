#include "kernels/elementwise.h"

#include <cmath>
#include <limits>

#include "kernels/kernel_test_support.h"

namespace loramux::elementwise_test {
namespace {

class ElementwiseTest : public KernelTest {
 protected:
  void CheckRope(std::int64_t half, const RopeShape& shape, Prng& prng);
};
LORAMUX_INSTANTIATE_KERNEL_TEST(ElementwiseTest);

// Below, at and above whole vectors; the last is large enough to be shared among threads at 100 rows.
constexpr std::int64_t kWidths[] = {1, 2, 7, 16, 33, 100, 768};
constexpr std::int64_t kRows = 100;

void ExpectNear(const std::vector<float>& actual, const std::vector<float>& expected, float relative) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], relative * (1 + std::abs(expected[i]))) << i;
  }
}

// Applies `op(context, row count, first row, buffer)` to all rows at once and to each alone. Both must be bitwise
// equal.
template <typename Op>
std::vector<float> CheckRowsAlone(const KernelContext& context, std::vector<float> y, std::int64_t width,
                                  const Op& op) {
  auto alone = y;
  op(context, kRows, 0, y.data());
  for (std::int64_t i = 0; i < kRows; ++i) op(context, 1, i, alone.data());
  EXPECT_TRUE(BitwiseEqual(y.data(), alone.data(), kRows * width));
  return y;
}

TEST_P(ElementwiseTest, RmsNorm) {
  Prng prng(1);
  float offset = 0;
  for (std::int64_t n : kWidths) {
    const auto x = RandomFloats(kRows * n, prng);
    const auto weight = RandomFloats(n, prng);
    const auto op = [&](const KernelContext& c, std::int64_t m, std::int64_t first, float* y) {
      NormRows(c, {{x.data() + first * n, n}, {y + first * n, n}, m, n, {weight.data(), offset}, 1e-5f});
    };
    const std::vector<float> zero(x.size());
    const auto actual = CheckRowsAlone(context(), zero, n, op);
    // The mean of squares has a relative error of a few roundings.
    ExpectNear(actual, CheckRowsAlone(reference(), zero, n, op), 4e-6f);
    auto in_place = x;
    const Rows both = {in_place.data(), n};
    NormRows(context(), {both, both, kRows, n, {weight.data(), offset}, 1e-5f});
    EXPECT_TRUE(BitwiseEqual(in_place.data(), actual.data(), kRows * n));
    offset = 1 - offset;
  }
}

void ElementwiseTest::CheckRope(std::int64_t half, const RopeShape& shape, Prng& prng) {
  const std::int64_t heads = 3, width = heads * shape.head_dim;
  auto cos = RandomFloats(kRows * half, prng), sin = cos;
  for (std::size_t i = 0; i < cos.size(); ++i) {
    sin[i] = std::sin(cos[i]);
    cos[i] = std::cos(cos[i]);
  }
  const auto op = [&](const KernelContext& c, std::int64_t m, std::int64_t first, float* x) {
    Rope(c, {{x + first * width, width}, m, heads, shape, cos.data() + first * half, sin.data() + first * half});
  };
  const auto x = RandomFloats(kRows * width, prng);
  // Fused or not: one rounding of a product below 1.
  ExpectNear(CheckRowsAlone(context(), x, width, op), CheckRowsAlone(reference(), x, width, op), 2e-7f);
}

TEST_P(ElementwiseTest, Rope) {
  Prng prng(2);
  for (std::int64_t half : kWidths) CheckRope(half, {2 * half, 2 * half}, prng);
  for (std::int64_t half : {1, 8, 24}) {
    CheckRope(half, {2 * half + 14, 2 * half}, prng);
    CheckRope(half, {2 * half + 14, 2 * half, /*adjacent_pairs=*/true}, prng);
    CheckRope(half, {2 * half, 2 * half, /*adjacent_pairs=*/true}, prng);
  }
}

TEST_P(ElementwiseTest, RopeLeavesTheRestOfAHead) {
  std::vector<float> x(2 * 8, 1.0f);
  const std::vector<float> cos = {0.5f}, sin = {0.25f};
  Rope(context(), {{x.data(), 16}, 1, 2, {8, 2, /*adjacent_pairs=*/true}, cos.data(), sin.data()});
  const std::vector<float> head = {0.25f, 0.75f, 1, 1, 1, 1, 1, 1};
  EXPECT_EQ(std::vector<float>(x.begin(), x.begin() + 8), head);
  EXPECT_EQ(std::vector<float>(x.begin() + 8, x.end()), head);
}

TEST_P(ElementwiseTest, GateMul) {
  Prng prng(3);
  constexpr Activation kForms[] = {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu,
                                   Activation::kRelu2};
  std::size_t next = 0;
  for (std::int64_t n : kWidths) {
    const Activation f = kForms[next++ % std::size(kForms)];
    const GateForm form = {f, n % 3 != 0 && f != Activation::kGelu};  // the exact GELU has no gate
    auto x = RandomFloats(kRows * 2 * n, prng);
    for (float& value : x) value *= 20;
    x[0] = -150.0f;  // exp overflows
    x[static_cast<std::size_t>(2 * n)] = 150.0f;
    const auto op = [&](const KernelContext& c, std::int64_t m, std::int64_t first, float* y) {
      GateMul(c, {{x.data() + first * 2 * n, 2 * n}, {y + first * n, n}, m, n, form});
    };
    const std::vector<float> zero(static_cast<std::size_t>(kRows * n));
    // The exponential is exact to a few units in the last place.
    ExpectNear(CheckRowsAlone(context(), zero, n, op), CheckRowsAlone(reference(), zero, n, op), 1e-6f);
  }
}

TEST_P(ElementwiseTest, LayerNorm) {
  Prng prng(1);
  const std::int64_t rows = 70;
  for (const std::int64_t n : kWidths) {
    auto x = RandomFloats(rows * n, prng);
    for (float& value : x) value += 3;  // a mean that must be removed
    const auto weight = RandomFloats(n, prng), bias = RandomFloats(n, prng);
    std::vector<float> actual(x.size()), expected(x.size()), alone(x.size());
    const NormWeights weights = {.weight = weight.data(), .bias = bias.data()};
    NormRows(context(), {{x.data(), n}, {actual.data(), n}, rows, n, weights, 1e-5f});
    NormRows(reference(), {{x.data(), n}, {expected.data(), n}, rows, n, weights, 1e-5f});
    // The mean of numbers around 3 has an error of 2^-22. The remainder after subtracting it is of size 1, or 0.01 for
    // small n.
    ExpectNear(actual, expected, n < 7 ? 2e-4f : 1e-5f);
    for (std::int64_t i = 0; i < rows; ++i) {
      NormRows(context(), {{x.data() + i * n, n}, {alone.data() + i * n, n}, 1, n, weights, 1e-5f});
    }
    EXPECT_TRUE(BitwiseEqual(actual.data(), alone.data(), rows * n));
    NormRows(context(), {{x.data(), n}, {x.data(), n}, rows, n, weights, 1e-5f});
    EXPECT_TRUE(BitwiseEqual(actual.data(), x.data(), rows * n));
  }
}

TEST_P(ElementwiseTest, LayerNormOfKnownRows) {
  const std::vector<float> x = {1, 3, -5, -5}, weight = {2, 1}, bias = {10, 20};
  std::vector<float> y(6, -1.0f);
  NormRows(context(), {{x.data(), 2}, {y.data(), 3}, 2, 2, {.weight = weight.data(), .bias = bias.data()}, 1e-12f});
  ExpectNear(y, {8, 21, -1, 10, 20, -1}, 1e-6f);
}

TEST_P(ElementwiseTest, GeluInPlace) {
  std::vector<float> values;
  for (float x = -12; x <= 12; x += 0.0078125f) values.push_back(x);
  values.insert(values.end(), {0.0f, -0.0f, 1e-20f, 100.0f, -100.0f});
  const auto n = static_cast<std::int64_t>(values.size());
  auto actual = values;
  const Rows row = {actual.data(), n};
  GateMul(context(), {row, row, 1, n, {Activation::kGelu, /*gated=*/false}});
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = values[i], exact = x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
    ASSERT_NEAR(actual[i], exact, 2.5e-7 * std::abs(x) + 1e-9) << x;
  }
}

TEST_P(ElementwiseTest, AddRows) {
  Prng prng(4);
  for (std::int64_t n : kWidths) {
    const auto x = RandomFloats(kRows * n, prng);
    const auto op = [&](const KernelContext& c, std::int64_t m, std::int64_t first, float* y) {
      AddRows(c, {{x.data() + first * n, n}, {y + first * n, n}, m, n});
    };
    const auto y = RandomFloats(kRows * n, prng);
    ExpectNear(CheckRowsAlone(context(), y, n, op), CheckRowsAlone(reference(), y, n, op), 0);
  }
}

TEST_P(ElementwiseTest, AddRowsTimesAFactor) {
  Prng prng(5);
  for (std::int64_t n : kWidths) {
    const auto x = RandomFloats(kRows * n, prng);
    const auto op = [&](const KernelContext& c, std::int64_t m, std::int64_t first, float* y) {
      AddRows(c, {{x.data() + first * n, n}, {y + first * n, n}, m, n, 0.22f});
    };
    const auto y = RandomFloats(kRows * n, prng);
    // Fused or not: one rounding of a product below 1.
    ExpectNear(CheckRowsAlone(context(), y, n, op), CheckRowsAlone(reference(), y, n, op), 2e-7f);
  }
}

TEST_P(ElementwiseTest, ScaleRows) {
  Prng prng(6);
  for (float cap : {0.0f, 3.0f}) {
    for (std::int64_t n : kWidths) {
      const auto op = [&](const KernelContext& c, std::int64_t m, std::int64_t first, float* x) {
        ScaleRows(c, {{x + first * n, n}, m, n, 5.5f, cap});
      };
      auto x = RandomFloats(kRows * n, prng);
      x[0] = -std::numeric_limits<float>::infinity();  // a token that may not be generated stays one
      const auto actual = CheckRowsAlone(context(), x, n, op);
      EXPECT_EQ(actual[0], x[0]);
      const auto expected = CheckRowsAlone(reference(), x, n, op);
      for (std::size_t i = 1; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 2e-6f) << i;
    }
  }
}

TEST_P(ElementwiseTest, RespectsStrides) {
  const std::int64_t n = 19, stride = 24;
  std::vector<float> x(3 * stride, 1.0f), y(3 * stride, -1.0f);
  const std::vector<float> weight(n, 2.0f);
  NormRows(context(), {{x.data(), stride}, {y.data(), stride}, 3, n, {weight.data()}});
  AddRows(context(), {{x.data(), stride}, {y.data(), stride}, 3, n});
  for (std::size_t i = 0; i < y.size(); ++i) {
    EXPECT_NEAR(y[i], static_cast<std::int64_t>(i) % stride < n ? 3.0f : -1.0f, 1e-6f) << i;
  }
}

}  // namespace
}  // namespace loramux::elementwise_test
