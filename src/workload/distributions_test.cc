#include "workload/distributions.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "workload/lengths.h"

namespace loramux::distributions_test {
namespace {

constexpr int kDraws = 200'000;

// Returns the mean and the coefficient of variation of many draws.
template <typename Draw>
std::pair<double, double> Moments(const Draw& draw) {
  Prng prng(7);
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double value = draw(prng);
    sum += value;
    squares += value * value;
  }
  const double mean = sum / kDraws;
  return {mean, std::sqrt(squares / kDraws - mean * mean) / mean};
}

TEST(Draws, HaveTheirMeanAndBurstiness) {
  const auto [exponential, exponential_cv] = Moments([](Prng& prng) { return DrawExponential(prng, 3); });
  EXPECT_NEAR(exponential, 3, 0.05);
  EXPECT_NEAR(exponential_cv, 1, 0.02);
  for (const double shape : {0.25, 1.0, 4.0}) {  // the coefficient of variation of a gamma is 1 / sqrt(shape)
    const auto [mean, cv] = Moments([&](Prng& prng) { return DrawGamma(prng, shape, Mean{5}); });
    EXPECT_NEAR(mean, 5, 0.15) << shape;
    EXPECT_NEAR(cv, 1 / std::sqrt(shape), 0.05) << shape;
  }
  for (const double shape : {0.5, 1.0, 2.0}) {
    const double cv_squared = std::tgamma(1 + 2 / shape) / std::pow(std::tgamma(1 + 1 / shape), 2) - 1;
    const auto [mean, cv] = Moments([&](Prng& prng) { return DrawWeibull(prng, shape, Mean{5}); });
    EXPECT_NEAR(mean, 5, 0.15) << shape;
    EXPECT_NEAR(cv, std::sqrt(cv_squared), 0.08) << shape;
  }
}

TEST(Draws, AScaleIsNoMean) {
  EXPECT_NEAR(Moments([](Prng& prng) { return DrawGamma(prng, 4, Scale{0.5}); }).first, 2, 0.05);
  EXPECT_NEAR(Moments([](Prng& prng) { return DrawWeibull(prng, 2, Scale{3}); }).first, 3 * std::tgamma(1.5), 0.05);
}

TEST(Draws, AMeanAndAScaleAreTwoWaysToSayTheSame) {
  Prng by_mean(7), by_scale(7);
  for (const double shape : {0.25, 1.0, 4.0}) {
    EXPECT_DOUBLE_EQ(DrawGamma(by_mean, shape, Mean{6}), DrawGamma(by_scale, shape, Scale{6 / shape})) << shape;
    const double scale = 6 / std::tgamma(1 + 1 / shape);
    EXPECT_DOUBLE_EQ(DrawWeibull(by_mean, shape, Mean{6}), DrawWeibull(by_scale, shape, Scale{scale})) << shape;
  }
}

TEST(Draws, LogNormalsHaveTheirMoments) {
  const auto [mean, cv] = Moments([](Prng& prng) { return DrawLogNormal(prng, 500, 0.8); });
  EXPECT_NEAR(mean, 500, 5);
  EXPECT_NEAR(cv, 0.8, 0.02);
  Prng prng(11);
  EXPECT_EQ(DrawLogNormal(prng, 7, 0), 7);
}

TEST(WeightedChoice, CoversTheUnit) {
  const WeightedChoice choice({1, 0, 3});
  EXPECT_EQ(choice.At(0), 0u);
  EXPECT_EQ(choice.At(0.249), 0u);
  EXPECT_EQ(choice.At(0.25), 2u);
  EXPECT_EQ(choice.At(0.999999), 2u);
}

TEST(PowerLaw, FollowsItsLaw) {
  const WeightedChoice picker(PowerLaw(4, 1));  // 1, 1/2, 1/3, 1/4 of 25/12
  std::vector<int> counts(4);
  Prng prng(3);
  for (int i = 0; i < kDraws; ++i) ++counts[picker.Draw(prng)];
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(static_cast<double>(counts[i]) / kDraws, 12.0 / 25 / (i + 1), 0.005) << i;
}

TEST(PowerLaw, IsUniformWithExponentZero) {
  const WeightedChoice picker(PowerLaw(5, 0));
  std::vector<int> counts(5);
  Prng prng(3);
  for (int i = 0; i < kDraws; ++i) ++counts[picker.Draw(prng)];
  for (const int count : counts) EXPECT_NEAR(static_cast<double>(count) / kDraws, 0.2, 0.005);
}

TEST(LengthDistribution, ReadsItsThreeForms) {
  Prng prng(1);
  EXPECT_EQ(LengthDistribution::Parse("128", "--x")->Draw(prng), 128);
  const auto uniform = *LengthDistribution::Parse("uniform:3:5", "--x");
  std::vector<int> seen(6);
  for (int i = 0; i < 300; ++i) ++seen.at(static_cast<std::size_t>(uniform.Draw(prng)));
  EXPECT_EQ(seen[0] + seen[1] + seen[2], 0);
  EXPECT_GT(std::min({seen[3], seen[4], seen[5]}), 50);
  const auto exponential = *LengthDistribution::Parse("exponential:100", "--x");
  double sum = 0;
  for (int i = 0; i < 20'000; ++i) sum += static_cast<double>(exponential.Draw(prng));
  EXPECT_NEAR(sum / 20'000, 100, 3);
}

TEST(LengthDistribution, RefusesTheRest) {
  for (const char* text : {"", "0", "-1", "1.5", "many", "uniform", "uniform:", "uniform:5", "uniform:5:3",
                           "uniform:1:2:3", "exponential:", "exponential:0", "normal:5", "99999999999999999999"}) {
    const auto result = LengthDistribution::Parse(text, "--input-tokens");
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_NE(result.error().message.find("--input-tokens"), std::string::npos);
  }
}

}  // namespace
}  // namespace loramux::distributions_test
