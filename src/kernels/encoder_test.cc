#include "kernels/encoder.h"

#include <cmath>

#include "kernels/kernel_test_support.h"

namespace loramux::encoder_test {
namespace {

class EncoderTest : public KernelTest {};
LORAMUX_INSTANTIATE_KERNEL_TEST(EncoderTest);

constexpr std::int64_t kWidths[] = {1, 2, 7, 16, 33, 100, 768};

void ExpectNear(const std::vector<float>& actual, const std::vector<float>& expected, float relative) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], relative * (1 + std::abs(expected[i]))) << i;
  }
}

TEST_P(EncoderTest, LayerNorm) {
  Prng prng(1);
  const std::int64_t rows = 70;
  for (const std::int64_t n : kWidths) {
    auto x = RandomFloats(rows * n, prng);
    for (float& value : x) value += 3;  // a mean that must be removed
    const auto weight = RandomFloats(n, prng), bias = RandomFloats(n, prng);
    std::vector<float> actual(x.size()), expected(x.size()), alone(x.size());
    LayerNorm(context(), x.data(), n, rows, n, weight.data(), bias.data(), 1e-5f, actual.data(), n);
    LayerNorm(reference(), x.data(), n, rows, n, weight.data(), bias.data(), 1e-5f, expected.data(), n);
    // The mean of numbers around 3 has an error of 2^-22. The remainder after subtracting it is of size 1, or 0.01 for
    // small n.
    ExpectNear(actual, expected, n < 7 ? 2e-4f : 1e-5f);
    for (std::int64_t i = 0; i < rows; ++i) {
      LayerNorm(context(), x.data() + i * n, n, 1, n, weight.data(), bias.data(), 1e-5f, alone.data() + i * n, n);
    }
    EXPECT_TRUE(BitwiseEqual(actual.data(), alone.data(), rows * n));
    LayerNorm(context(), x.data(), n, rows, n, weight.data(), bias.data(), 1e-5f, x.data(), n);
    EXPECT_TRUE(BitwiseEqual(actual.data(), x.data(), rows * n));
  }
}

TEST_P(EncoderTest, LayerNormOfKnownRows) {
  const std::vector<float> x = {1, 3, -5, -5}, weight = {2, 1}, bias = {10, 20};
  std::vector<float> y(6, -1.0f);
  LayerNorm(context(), x.data(), 2, 2, 2, weight.data(), bias.data(), 1e-12f, y.data(), 3);
  ExpectNear(y, {8, 21, -1, 10, 20, -1}, 1e-6f);
}

TEST_P(EncoderTest, Gelu) {
  std::vector<float> values;
  for (float x = -12; x <= 12; x += 0.0078125f) values.push_back(x);
  values.insert(values.end(), {0.0f, -0.0f, 1e-20f, 100.0f, -100.0f});
  const auto n = static_cast<std::int64_t>(values.size());
  auto actual = values;
  Gelu(context(), actual.data(), n, 1, n);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = values[i], exact = x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
    ASSERT_NEAR(actual[i], exact, 2.5e-7 * std::abs(x) + 1e-9) << x;
  }
}

TEST_P(EncoderTest, Attention) {
  Prng prng(3);
  for (const std::int64_t rows : {1, 2, 5, 17, 64}) {
    for (const std::int64_t head_dim : {1, 6, 16, 40}) {
      const std::int64_t heads = 3, width = heads * head_dim, stride = 3 * width;
      auto qkv = RandomFloats(rows * stride, prng);
      for (float& value : qkv) value *= 2;
      const EncoderRows x = {.q = qkv.data(),
                             .k = qkv.data() + width,
                             .v = qkv.data() + 2 * width,
                             .stride = stride,
                             .rows = rows,
                             .num_heads = heads,
                             .head_dim = head_dim};
      std::vector<float> actual(static_cast<std::size_t>(rows * width)), expected = actual;
      std::vector<float> workspace(static_cast<std::size_t>(EncoderAttentionFloats(rows, GetParam().threads)));
      EncoderAttention(context(), x, actual.data(), width, workspace.data());
      EncoderAttention(reference(), x, expected.data(), width, workspace.data());
      ExpectNear(actual, expected, 2 * SumTolerance(rows + head_dim));
    }
  }
}

// The last row also affects the first one.
TEST_P(EncoderTest, EveryRowSeesEveryRow) {
  const std::vector<float> q = {1, 1}, k = {0, 0}, v = {2, 6};
  const EncoderRows x = {
      .q = q.data(), .k = k.data(), .v = v.data(), .stride = 1, .rows = 2, .num_heads = 1, .head_dim = 1};
  std::vector<float> out(2), workspace(static_cast<std::size_t>(EncoderAttentionFloats(2, GetParam().threads)));
  EncoderAttention(context(), x, out.data(), 1, workspace.data());
  ExpectNear(out, {4, 4}, 1e-6f);
}

}  // namespace
}  // namespace loramux::encoder_test
