// The slopes of ALiBi, as transformers computes them.
#include "model/alibi.h"

#include <cmath>

#include <gtest/gtest.h>

namespace loramux::alibi_test {
namespace {

ModelConfig Config(Alibi alibi, std::int64_t heads) {
  ModelConfig config;
  config.alibi = alibi;
  config.num_heads = heads;
  config.head_dim = 16;
  return config;
}

TEST(AlibiTest, SlopesOfPowersOfTwoAndBetween) {
  EXPECT_TRUE(AlibiSlopes(Config(Alibi::kNone, 12)).empty());
  // Slopes of scores, which are a quarter of the products.
  constexpr float kOf12[] = {0.5f,       0.25f,       0.125f,       0.0625f,      0.03125f,     0.015625f,
                             0.0078125f, 0.00390625f, 0.707106769f, 0.353553385f, 0.176776692f, 0.088388346f};
  const std::vector<float> exact = AlibiSlopes(Config(Alibi::kExact, 12));
  const std::vector<float> rounded = AlibiSlopes(Config(Alibi::kBf16, 12));
  ASSERT_EQ(exact.size(), 12u);
  for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_FLOAT_EQ(exact[i], 4 * kOf12[i]) << i;
  // As bfloat16 has them.
  EXPECT_EQ(rounded[0], 0.5f);
  EXPECT_EQ(rounded[8], 0.70703125f);
  EXPECT_EQ(rounded[11], 0.08837890625f);
  const std::vector<float> of_32 = AlibiSlopes(Config(Alibi::kExact, 32));
  EXPECT_FLOAT_EQ(of_32[0], 4 * 0.8408964276f);
  EXPECT_FLOAT_EQ(of_32[31], 4 * 0.00390625f);
}

}  // namespace
}  // namespace loramux::alibi_test
