#include "kernels/encoder.h"

#include <cmath>

#include "kernels/kernel_test_support.h"

namespace loramux::encoder_test {
namespace {

class EncoderTest : public KernelTest {};
LORAMUX_INSTANTIATE_KERNEL_TEST(EncoderTest);

void ExpectNear(const std::vector<float>& actual, const std::vector<float>& expected, float relative) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], relative * (1 + std::abs(expected[i]))) << i;
  }
}

TEST_P(EncoderTest, Attention) {
  Prng prng(3);
  for (const std::int64_t rows : {1, 2, 5, 17, 64}) {
    for (const std::int64_t head_dim : {1, 6, 16, 40}) {
      const std::int64_t heads = 3, width = heads * head_dim, stride = 3 * width;
      auto qkv = RandomFloats(rows * stride, prng);
      for (float& value : qkv) value *= 2;
      const Rows all = {qkv.data(), stride};
      std::vector<float> actual(static_cast<std::size_t>(rows * width)), expected = actual;
      std::vector<float> workspace(static_cast<std::size_t>(EncoderAttentionFloats(rows, GetParam().threads)));
      EncoderAttentionArguments arguments = {.q = all,
                                             .k = all.From(width),
                                             .v = all.From(2 * width),
                                             .out = {actual.data(), width},
                                             .rows = rows,
                                             .num_heads = heads,
                                             .head_dim = head_dim,
                                             .workspace = workspace.data()};
      EncoderAttention(context(), arguments);
      arguments.out.data = expected.data();
      EncoderAttention(reference(), arguments);
      ExpectNear(actual, expected, 2 * SumTolerance(rows + head_dim));
    }
  }
}

// The last row also affects the first one.
TEST_P(EncoderTest, EveryRowSeesEveryRow) {
  const std::vector<float> q = {1, 1}, k = {0, 0}, v = {2, 6};
  std::vector<float> out(2), workspace(static_cast<std::size_t>(EncoderAttentionFloats(2, GetParam().threads)));
  EncoderAttention(context(), {.q = {q.data(), 1},
                               .k = {k.data(), 1},
                               .v = {v.data(), 1},
                               .out = {out.data(), 1},
                               .rows = 2,
                               .num_heads = 1,
                               .head_dim = 1,
                               .workspace = workspace.data()});
  ExpectNear(out, {4, 4}, 1e-6f);
}

}  // namespace
}  // namespace loramux::encoder_test
