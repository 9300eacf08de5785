#include "model/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "model/random_logits_for_test.h"

namespace loramux::sampler_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Logits = std::vector<float>;
using Biases = std::vector<LogitBias>;

// ---- the oracle: everything sorted, everything in double

Logits ExpectedLogits(Logits logits, const SamplingParams& params, const SamplerContext& context) {
  for (TokenId id : context.banned) logits[id] = -kInfinity;
  for (const auto& [id, bias] : context.logit_bias) logits[id] += bias;
  for (TokenId id = 0; id < static_cast<TokenId>(logits.size()); ++id) {
    const auto in_generated = std::ranges::count(context.generated, id);
    const auto in_prompt = std::ranges::count(context.prompt, id);
    float& logit = logits[id];
    if (in_generated + in_prompt > 0) {
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    }
    logit -= params.frequency_penalty * static_cast<float>(in_generated);
    logit -= in_generated > 0 ? params.presence_penalty : 0.0f;
  }
  return logits;
}

// Probability of each token.
std::vector<double> ExpectedDistribution(const Logits& raw, const SamplingParams& params,
                                         const SamplerContext& context) {
  const Logits logits = ExpectedLogits(raw, params, context);
  const double max = *std::ranges::max_element(logits);
  std::vector<double> weights(logits.size());
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = std::exp((logits[i] - max) / params.temperature);
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
  for (TokenId id : order) {
    if (weights[id] < params.min_p) weights[id] = 0;
  }
  if (params.top_k > 0) {
    for (std::size_t i = static_cast<std::size_t>(params.top_k); i < order.size(); ++i) weights[order[i]] = 0;
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double before = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const double weight = weights[order[i]];
    if (i > 0 && params.top_p < 1.0f && before >= params.top_p * total) weights[order[i]] = 0;
    before += weight;
  }
  const double kept = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= kept;
  return weights;
}

double DrawOf(std::uint64_t seed, std::size_t step) { return UnitDouble(SplitMix64(SplitMix64(seed) + step)); }

class SamplerTest : public ::testing::Test {
 protected:
  TokenId Draw(const Logits& logits, const SamplingParams& params, const SamplerContext& context = {}) {
    return Sample(logits, params, context, scratch_).id;
  }

  // The tokens drawn with many seeds, with their counts.
  std::map<TokenId, int> Histogram(const Logits& logits, SamplingParams params, int draws,
                                   const SamplerContext& context = {}) {
    std::map<TokenId, int> counts;
    for (int seed = 0; seed < draws; ++seed) {
      params.seed = static_cast<std::uint64_t>(seed);
      ++counts[Draw(logits, params, context)];
    }
    return counts;
  }

  std::vector<TokenId> Support(const Logits& logits, const SamplingParams& params, const SamplerContext& context = {}) {
    std::vector<TokenId> ids;
    for (const auto& [id, count] : Histogram(logits, params, 3000, context)) ids.push_back(id);
    return ids;
  }

  // Expects frequencies within five standard deviations of the oracle's probabilities (and two draws: a rare token's
  // count is not normally distributed).
  void ExpectFrequencies(const Logits& logits, const SamplingParams& params, const SamplerContext& context = {}) {
    constexpr int kDraws = 40000;
    const std::vector<double> expected = ExpectedDistribution(logits, params, context);
    const std::map<TokenId, int> counts = Histogram(logits, params, kDraws, context);
    for (std::size_t id = 0; id < expected.size(); ++id) {
      const auto found = counts.find(static_cast<TokenId>(id));
      const double count = found == counts.end() ? 0 : found->second;
      const double sigma = std::sqrt(kDraws * expected[id] * (1 - expected[id]));
      EXPECT_NEAR(count, kDraws * expected[id], 5 * sigma + 2) << "token " << id;
    }
  }

  SamplerScratch scratch_;
};

using Ids = std::vector<TokenId>;

TEST_F(SamplerTest, GreedyTakesTheFirstMaximum) {
  SamplingParams params;
  params.temperature = 0;
  EXPECT_EQ(Draw({1, 5, 3, 5}, params), 1);
  EXPECT_EQ(Draw({-4}, params), 0);
  Logits large(1000, -1.0f);
  large[777] = large[778] = 2.0f;
  EXPECT_EQ(Draw(large, params), 777);
  params.temperature = 1e-6f;  // practically zero
  EXPECT_EQ(Draw({1, 5, 3, 5}, params), 1);
}

TEST_F(SamplerTest, FrequenciesFollowTheSoftmax) { ExpectFrequencies({1.0f, 0.0f, -1.0f, 2.0f, 0.5f}, {}); }

TEST_F(SamplerTest, FrequenciesFollowTheTemperature) {
  SamplingParams params;
  for (float temperature : {0.3f, 0.7f, 2.5f}) {
    params.temperature = temperature;
    ExpectFrequencies({1.0f, 0.0f, -1.0f, 2.0f, 0.5f}, params);
  }
}

TEST_F(SamplerTest, FrequenciesOfALargeVocabulary) {
  Prng prng(3);
  ExpectFrequencies(RandomLogits(3000, 3.0f, prng), {});
}

TEST_F(SamplerTest, FrequenciesUnderAllThresholds) {
  Prng prng(4);
  const Logits logits = RandomLogits(500, 2.0f, prng);
  SamplingParams params;
  params.temperature = 1.3f;
  params.top_k = 40;
  params.top_p = 0.8f;
  params.min_p = 0.02f;
  ExpectFrequencies(logits, params);
}

TEST_F(SamplerTest, TopKKeepsTheFirstKAndBreaksTiesByTheLowerId) {
  SamplingParams params;
  params.top_k = 3;
  EXPECT_EQ(Support({1, 2, 1, 3, 1}, params), (Ids{0, 1, 3}));
  params.top_k = 1;
  EXPECT_EQ(Support({7, 7, 7}, params), (Ids{0}));
  for (int off : {0, -1, 5, 500}) {
    params.top_k = off;
    EXPECT_EQ(Support({1, 2, 1, 3, 1}, params), (Ids{0, 1, 2, 3, 4}));
  }
}

TEST_F(SamplerTest, TopPKeepsTheShortestPrefixThatReachesIt) {
  // Probabilities 0.1, 0.2, 0.3, 0.4.
  const Logits logits = {std::log(1.0f), std::log(2.0f), std::log(3.0f), std::log(4.0f)};
  SamplingParams params;
  const auto support = [&](float top_p) {
    params.top_p = top_p;
    return Support(logits, params);
  };
  EXPECT_EQ(support(0.0f), (Ids{3}));
  EXPECT_EQ(support(0.39f), (Ids{3}));
  EXPECT_EQ(support(0.41f), (Ids{2, 3}));
  EXPECT_EQ(support(0.69f), (Ids{2, 3}));
  EXPECT_EQ(support(0.71f), (Ids{1, 2, 3}));
  EXPECT_EQ(support(0.91f), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(support(1.0f), (Ids{0, 1, 2, 3}));
}

TEST_F(SamplerTest, TopPIsAShareOfWhatTopKLeft) {
  const Logits logits = {std::log(1.0f), std::log(2.0f), std::log(3.0f), std::log(4.0f)};
  SamplingParams params;
  params.top_k = 2;  // 0.3 and 0.4 become 3/7 and 4/7
  params.top_p = 0.5f;
  EXPECT_EQ(Support(logits, params), (Ids{3}));
  params.top_p = 0.6f;
  EXPECT_EQ(Support(logits, params), (Ids{2, 3}));
}

TEST_F(SamplerTest, TopPBreaksTiesByTheLowerId) {
  SamplingParams params;
  params.top_p = 0.5f;
  EXPECT_EQ(Support({0, 0, 0, 0}, params), (Ids{0, 1}));
}

TEST_F(SamplerTest, MinPComparesWithTheLikeliest) {
  const Logits logits = {std::log(1.0f), std::log(2.0f), std::log(3.0f), std::log(4.0f)};
  SamplingParams params;
  params.min_p = 0.49f;
  EXPECT_EQ(Support(logits, params), (Ids{1, 2, 3}));
  params.min_p = 0.51f;
  EXPECT_EQ(Support(logits, params), (Ids{2, 3}));
  params.min_p = 1.0f;
  EXPECT_EQ(Support(logits, params), (Ids{3}));
  params.min_p = 0.51f;
  params.temperature = 2.0f;  // it applies after temperature: sqrt(1/4) = 0.5, sqrt(2/4) = 0.71
  EXPECT_EQ(Support(logits, params), (Ids{1, 2, 3}));
}

TEST_F(SamplerTest, PresenceAndFrequencyPenaltiesCountGeneratedTokensOnly) {
  SamplingParams params;
  params.temperature = 0;
  const Ids prompt = {0, 0, 0, 0};
  const Ids generated = {1, 1, 1, 2};
  const SamplerContext context{prompt, generated, {}};
  params.frequency_penalty = 1.0f;  // 10, 12 - 3, 10.5 - 1
  EXPECT_EQ(Draw({10, 12, 10.5f}, params, context), 0);
  EXPECT_EQ(Draw({9, 13, 10.5f}, params, context), 1);
  params.frequency_penalty = 0;
  params.presence_penalty = 1.0f;  // 10, 12 - 1, 10.5 - 1
  EXPECT_EQ(Draw({10, 12, 10.5f}, params, context), 1);
  EXPECT_EQ(Draw({10, 10.9f, 10.9f}, params, context), 0);
  params.presence_penalty = -2.0f;  // negative ones encourage repetition
  EXPECT_EQ(Draw({10, 8.5f, 9}, params, context), 2);
}

TEST_F(SamplerTest, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogitsOnce) {
  SamplingParams params;
  params.temperature = 0;
  params.repetition_penalty = 2.0f;
  const Ids prompt = {0, 0};
  const Ids generated = {1, 1, 0};
  const SamplerContext context{prompt, generated, {}};
  EXPECT_EQ(Draw({10, 8, 5.5f}, params, context), 2);    // 5, 4, 5.5
  EXPECT_EQ(Draw({10, 8, 4.9f}, params, context), 0);    // 5, 4, 4.9
  EXPECT_EQ(Draw({-1, -3, -1.9f}, params, context), 2);  // -2, -6, -1.9
  EXPECT_EQ(Draw({-1, -3, -2.1f}, params, context), 0);
}

TEST_F(SamplerTest, BanAndBiasComeBeforeThePenalties) {
  SamplingParams params;
  params.temperature = 0;
  params.repetition_penalty = 2.0f;
  const Ids prompt = {0};
  const Biases biases = {{0, 8.0f}};
  const SamplerContext context{.prompt = prompt, .logit_bias = biases};
  EXPECT_EQ(Draw({2, 5.5f}, params, context), 1);  // (2 + 8) / 2 = 5, not 2 / 2 + 8 = 9
}

TEST_F(SamplerTest, PenaltiesLeaveNoTraceForTheNextRequest) {
  Prng prng(5);
  const Logits logits = RandomLogits(200, 1.0f, prng);
  SamplingParams params;
  params.repetition_penalty = 1.5f;
  params.frequency_penalty = 0.5f;
  const Ids tokens = {3, 3, 17, 199, -5, 200, 1000};  // the last three are outside the vocabulary
  const TokenId first = Draw(logits, params);
  Draw(logits, params, {tokens, tokens, {}});
  EXPECT_EQ(Draw(logits, params), first);
  EXPECT_TRUE(std::ranges::all_of(scratch_.counts, [](int count) { return count == 0; }));
}

TEST_F(SamplerTest, BiasOfAHundredForcesAndForbids) {
  const Biases forces = {{2, 100.0f}}, forbids = {{0, -100.0f}, {3, -100.0f}, {99, 100.0f}};
  EXPECT_EQ(Support({5, 5, -5, 5}, {}, {.logit_bias = forces}), (Ids{2}));
  EXPECT_EQ(Support({5, 5, 5, 5}, {}, {.logit_bias = forbids}), (Ids{1, 2}));
}

TEST_F(SamplerTest, BannedTokensAreNeverChosen) {
  SamplingParams params;
  const Ids banned = {1, 3, 77};
  SamplerContext context{.banned = banned};
  EXPECT_EQ(Support({0, 90, 0, 90}, params, context), (Ids{0, 2}));
  const Biases biases = {{1, 100.0f}};
  context.logit_bias = biases;  // even with a bias
  EXPECT_EQ(Support({0, 90, 0, 90}, params, context), (Ids{0, 2}));
  params.temperature = 0;
  EXPECT_EQ(Draw({0, 90, 1, 90}, params, context), 2);
}

TEST_F(SamplerTest, MinusInfinityIsNeverChosen) {
  EXPECT_EQ(Support({-kInfinity, 0, -kInfinity, -1}, {}), (Ids{1, 3}));
  SamplingParams params;
  params.top_k = 3;
  params.top_p = 0.9999f;
  EXPECT_EQ(Support({-kInfinity, 0, -kInfinity, -1}, params), (Ids{1, 3}));
}

TEST_F(SamplerTest, NanGivesTheLowestFiniteMaximum) {
  for (float temperature : {0.0f, 1.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    params.top_logprobs = 2;
    EXPECT_EQ(Draw({1, kNan, 4, kInfinity, 4}, params), 2);
    EXPECT_EQ(Draw({kNan, kNan, -kInfinity}, params), 0);
    EXPECT_EQ(Draw({kNan, -3, -kInfinity}, params), 1);
    const Ids banned = {0};
    EXPECT_EQ(Draw({kNan, kNan, -kInfinity}, params, {{}, {}, banned}), 1);
  }
}

TEST_F(SamplerTest, InfinityWins) {
  for (float temperature : {0.0f, 1.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    EXPECT_EQ(Draw({1, kInfinity, 4, kInfinity}, params), 1);
  }
}

TEST_F(SamplerTest, WhereNothingIsPossibleTheLowestIdNotBannedIsTaken) {
  const Ids some = {0, 2};
  const Ids all = {0, 1, 2};
  EXPECT_EQ(Draw({-kInfinity, -kInfinity, -kInfinity}, {}), 0);
  EXPECT_EQ(Draw({5, -kInfinity, 5}, {}, {{}, {}, some}), 1);
  EXPECT_EQ(Draw({5, 5, 5}, {}, {{}, {}, all}), 0);
}

TEST_F(SamplerTest, TheDrawDependsOnSeedAndStepOnly) {
  Prng prng(6);
  const Logits logits = RandomLogits(2000, 1.0f, prng);
  SamplerScratch other;
  std::map<TokenId, int> by_step;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SamplingParams params;
    params.seed = seed;
    const Ids generated(seed % 7, 5);
    const SamplerContext context{{}, generated, {}};
    const TokenId id = Draw(logits, params, context);
    EXPECT_EQ(Sample(logits, params, context, other).id, id);
    const Ids different(seed % 7, 9);  // the same number of other tokens
    EXPECT_EQ(Draw(logits, params, {different, different, {}}), id);
    const Ids steps(seed, 0);
    params.seed = 1;
    ++by_step[Draw(logits, params, {{}, steps, {}})];
  }
  EXPECT_GT(by_step.size(), 40u);  // the steps of one seed are independent
}

// The oracle's cumulative distribution at the documented random number, for random parameters.
TEST_F(SamplerTest, MatchesTheOracleForRandomParameters) {
  Prng prng(7);
  for (int trial = 0; trial < 3000; ++trial) {
    const std::size_t vocabulary = std::vector<std::size_t>{1, 2, 17, 256, 257, 1200}[prng.NextBelow(6)];
    Logits logits = RandomLogits(vocabulary, static_cast<float>(prng.NextDouble() * 8), prng);
    if (prng.NextBelow(4) == 0) {  // many ties
      for (float& logit : logits) logit = std::round(logit);
    }
    SamplingParams params;
    params.temperature = static_cast<float>(0.05 + prng.NextDouble() * 2);
    params.seed = prng.Next();
    if (prng.NextBelow(2) == 0) params.top_k = static_cast<std::int32_t>(prng.NextBelow(vocabulary + 3));
    if (prng.NextBelow(2) == 0) params.top_p = static_cast<float>(prng.NextDouble());
    if (prng.NextBelow(3) == 0) params.min_p = static_cast<float>(prng.NextDouble() * 0.3);
    if (prng.NextBelow(3) == 0) params.presence_penalty = static_cast<float>(prng.NextDouble() * 4 - 2);
    if (prng.NextBelow(3) == 0) params.frequency_penalty = static_cast<float>(prng.NextDouble() * 4 - 2);
    if (prng.NextBelow(3) == 0) params.repetition_penalty = static_cast<float>(0.5 + prng.NextDouble());
    const auto tokens = [&](std::size_t n) {
      Ids ids(prng.NextBelow(n));
      for (TokenId& id : ids) id = static_cast<TokenId>(prng.NextBelow(vocabulary));
      return ids;
    };
    const Ids prompt = tokens(20), generated = tokens(20), banned = vocabulary > 2 ? tokens(3) : Ids{};
    Biases biases;
    for (TokenId id : tokens(4)) biases.emplace_back(id, static_cast<float>(prng.NextDouble() * 4 - 2));
    const SamplerContext context{.prompt = prompt, .generated = generated, .banned = banned, .logit_bias = biases};

    const std::vector<double> expected = ExpectedDistribution(logits, params, context);
    const double u = DrawOf(params.seed, generated.size());
    const TokenId id = Draw(logits, params, context);
    const double before = std::accumulate(expected.begin(), expected.begin() + id, 0.0);
    // Thresholds compare sums of weights, so a boundary token may differ if it ties with the threshold to 1e-6.
    ASSERT_GT(expected[id], 0) << "trial " << trial;
    ASSERT_LE(before, u + 2e-6) << "trial " << trial;
    ASSERT_GE(before + expected[id], u - 2e-6) << "trial " << trial;
  }
}

TEST_F(SamplerTest, LogprobsAreOfTheRawLogits) {
  const Logits logits = {1.0f, 3.0f, -2.0f, 3.0f, 0.0f};
  double total = 0;
  for (float logit : logits) total += std::exp(static_cast<double>(logit));
  SamplingParams params;
  params.temperature = 0.2f;
  params.top_logprobs = 3;
  params.repetition_penalty = 3.0f;
  const Biases biases = {{2, 100.0f}};
  const SampledToken token = Sample(logits, params, {.logit_bias = biases}, scratch_);
  EXPECT_EQ(token.id, 2);
  EXPECT_NEAR(token.logprob, -2.0 - std::log(total), 1e-6);
  ASSERT_EQ(token.top_logprobs.size(), 3u);
  EXPECT_EQ(token.top_logprobs[0].id, 1);
  EXPECT_EQ(token.top_logprobs[1].id, 3);
  EXPECT_EQ(token.top_logprobs[2].id, 0);
  EXPECT_NEAR(token.top_logprobs[2].logprob, 1.0 - std::log(total), 1e-6);
}

TEST_F(SamplerTest, LogprobsOnlyIfAskedFor) {
  SamplingParams params;
  EXPECT_EQ(Sample(Logits{1, 2}, params, {}, scratch_).logprob, 0);
  params.top_logprobs = 0;
  const SampledToken token = Sample(Logits{1, 1}, params, {}, scratch_);
  EXPECT_NEAR(token.logprob, std::log(0.5), 1e-6);
  EXPECT_TRUE(token.top_logprobs.empty());
}

TEST_F(SamplerTest, LogprobsOfALargeVocabulary) {
  Prng prng(8);
  const Logits logits = RandomLogits(5000, 4.0f, prng);
  double total = 0;
  for (float logit : logits) total += std::exp(static_cast<double>(logit));
  SamplingParams params;
  params.top_logprobs = 5000;
  const SampledToken token = Sample(logits, params, {}, scratch_);
  ASSERT_EQ(token.top_logprobs.size(), 5000u);
  for (std::size_t i = 0; i < token.top_logprobs.size(); ++i) {
    const TokenLogprob& entry = token.top_logprobs[i];
    EXPECT_NEAR(entry.logprob, logits[entry.id] - std::log(total), 1e-5);
    EXPECT_LE(entry.logprob, token.top_logprobs[i > 0 ? i - 1 : 0].logprob);
  }
}

TEST_F(SamplerTest, LogprobsAreNeverNan) {
  SamplingParams params;
  params.top_logprobs = 4;
  for (const Logits& logits : {Logits{kNan, 1, kInfinity, -kInfinity}, Logits{kNan, kNan, kNan, kNan},
                               Logits{-kInfinity, -kInfinity, -kInfinity, -kInfinity}, Logits{kNan, 1, 2, 3},
                               Logits{0, kInfinity, 0, kInfinity}, Logits{0, -kInfinity, 0, 0}}) {
    const SampledToken token = Sample(logits, params, {}, scratch_);
    EXPECT_FALSE(std::isnan(token.logprob));
    EXPECT_EQ(token.top_logprobs.size(), 4u);
    for (const TokenLogprob& entry : token.top_logprobs) EXPECT_FALSE(std::isnan(entry.logprob));
  }
}

// A request of any kind, and the logits that its draw saw.
struct ModeCase {
  Logits logits;
  SamplingParams params;
  Biases biases;
  Ids prompt, generated, banned;
  SamplerContext Context() const {
    return {.prompt = prompt, .generated = generated, .banned = banned, .logit_bias = biases};
  }
};

ModeCase RandomModeCase(std::uint64_t seed) {
  Prng prng(seed);
  ModeCase random{.logits = RandomLogits(60, 2, prng)};
  SamplingParams& params = random.params;
  params.seed = prng.Next();
  params.top_logprobs = 60;
  params.temperature = prng.NextBelow(4) == 0 ? 0.0f : 0.3f + static_cast<float>(prng.NextDouble());
  if (prng.NextBelow(2) == 0) params.top_k = 1 + static_cast<std::int32_t>(prng.NextBelow(30));
  if (prng.NextBelow(2) == 0) params.top_p = 0.5f + static_cast<float>(prng.NextDouble()) / 2;
  if (prng.NextBelow(3) == 0) params.min_p = 0.05f;
  if (prng.NextBelow(2) == 0) params.repetition_penalty = 1.3f;
  if (prng.NextBelow(2) == 0) params.frequency_penalty = 0.4f;
  random.prompt = {1, 5};
  random.generated = {5, 7, 7};
  if (prng.NextBelow(2) == 0) random.banned = {9};
  if (prng.NextBelow(2) == 0) random.biases = {{3, 4.0f}, {4, -100.0f}};
  return random;
}

std::map<TokenId, float> ToldOf(const ModeCase& one, LogprobsMode mode, SamplerScratch& scratch, TokenId* id) {
  SamplingParams params = one.params;
  params.logprobs_mode = mode;
  const SampledToken token = Sample(one.logits, params, one.Context(), scratch);
  *id = token.id;
  std::map<TokenId, float> told;
  for (const TokenLogprob& entry : token.top_logprobs) told[entry.id] = entry.logprob;
  EXPECT_EQ(told.size(), one.logits.size());
  EXPECT_EQ(told[token.id], token.logprob);
  return told;
}

TEST_F(SamplerTest, EachModeTellsItsOwnNumbersOfTheSameToken) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const ModeCase one = RandomModeCase(seed);
    TokenId id = 0, other = 0;
    const auto raw = ToldOf(one, LogprobsMode::kRawLogprobs, scratch_, &id);
    const auto logits = ToldOf(one, LogprobsMode::kRawLogits, scratch_, &other);
    EXPECT_EQ(other, id);
    const auto drawn = ToldOf(one, LogprobsMode::kProcessedLogprobs, scratch_, &other);
    EXPECT_EQ(other, id);
    const auto drawn_logits = ToldOf(one, LogprobsMode::kProcessedLogits, scratch_, &other);
    EXPECT_EQ(other, id);
    const bool greedy = one.params.IsGreedy();
    SamplingParams of_draw = one.params;  // a greedy choice has neither temperature nor thresholds
    if (greedy) of_draw = {.repetition_penalty = of_draw.repetition_penalty};
    if (greedy) of_draw.frequency_penalty = one.params.frequency_penalty;
    const Logits adjusted = ExpectedLogits(one.logits, one.params, one.Context());
    const std::vector<double> distribution = ExpectedDistribution(one.logits, of_draw, one.Context());
    for (TokenId token = 0; token < 60; ++token) {
      const auto i = static_cast<std::size_t>(token);
      EXPECT_EQ(logits.at(token), one.logits[i]);
      EXPECT_NEAR(raw.at(token) - raw.at(id), logits.at(token) - logits.at(id), 1e-5);
      if (distribution[i] > 0) {
        EXPECT_NEAR(drawn.at(token), std::log(distribution[i]), 1e-5);
        EXPECT_NEAR(drawn_logits.at(token), adjusted[i] / of_draw.temperature, 1e-4);
      } else {
        EXPECT_EQ(drawn.at(token), -kInfinity);
        EXPECT_EQ(drawn_logits.at(token), -kInfinity);
      }
    }
    EXPECT_GT(drawn.at(id), -kInfinity);
  }
}

TEST_F(SamplerTest, ModesNeverTellNan) {
  for (const LogprobsMode mode :
       {LogprobsMode::kProcessedLogprobs, LogprobsMode::kRawLogits, LogprobsMode::kProcessedLogits}) {
    for (const Logits& logits :
         {Logits{kNan, 1, kInfinity, -kInfinity}, Logits{kNan, kNan, kNan, kNan}, Logits{kNan, 1, 2, 3},
          Logits{-kInfinity, -kInfinity, -kInfinity, -kInfinity}, Logits{0, kInfinity, 0, kInfinity}}) {
      for (const float penalty : {1.0f, 2.0f}) {
        SamplingParams params{.top_k = 2, .repetition_penalty = penalty, .top_logprobs = 4, .logprobs_mode = mode};
        const Ids seen = {1};
        const SampledToken token = Sample(logits, params, {.prompt = seen}, scratch_);
        EXPECT_FALSE(std::isnan(token.logprob));
        EXPECT_EQ(token.top_logprobs.size(), 4u);
        for (const TokenLogprob& entry : token.top_logprobs) EXPECT_FALSE(std::isnan(entry.logprob));
      }
    }
  }
}

TEST_F(SamplerTest, TellsTheTokensThatAreListed) {
  const Logits logits = {1, 2, 3, 4, 5};
  SamplingParams params{.temperature = 0, .top_logprobs = 2};
  const Ids ids = {0, 4, 2, 0};
  const SampledToken natural = Sample(logits, params, {}, scratch_);
  params.top_logprobs = 5;
  const SampledToken all = Sample(logits, params, {}, scratch_);
  params.top_logprobs = 2;
  const SampledToken listed = Sample(logits, params, {.logprob_ids = ids}, scratch_);
  EXPECT_EQ(listed.id, natural.id);
  EXPECT_EQ(listed.logprob, natural.logprob);
  ASSERT_EQ(listed.top_logprobs.size(), 3u);  // the chosen one first, none twice
  EXPECT_EQ(listed.top_logprobs[0].id, 4);
  EXPECT_EQ(listed.top_logprobs[1].id, 0);
  EXPECT_EQ(listed.top_logprobs[2].id, 2);
  EXPECT_EQ(listed.top_logprobs[1].logprob, all.top_logprobs[4].logprob);
  EXPECT_EQ(listed.top_logprobs[2].logprob, all.top_logprobs[2].logprob);
  params.top_logprobs = -1;
  EXPECT_TRUE(Sample(logits, params, {.logprob_ids = ids}, scratch_).top_logprobs.empty());
}

TEST(LogprobsModes, HaveTheNamesOfVllm) {
  for (const std::string_view name : {"raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"}) {
    ASSERT_TRUE(FindLogprobsMode(name).has_value()) << name;
    EXPECT_EQ(LogprobsModeName(*FindLogprobsMode(name)), name);
  }
  EXPECT_EQ(FindLogprobsMode("raw_logprobs"), LogprobsMode::kRawLogprobs);
  EXPECT_FALSE(FindLogprobsMode("raw").has_value());
}

TEST_F(SamplerTest, ExtremeLogitsAndTemperatures) {
  SamplingParams params;
  params.temperature = 1e-4f;
  EXPECT_EQ(Support({1e30f, -1e30f, 3e38f, -3e38f}, params), (Ids{2}));
  params.temperature = 1e30f;
  EXPECT_EQ(Support({1, 2, 3}, params), (Ids{0, 1, 2}));
}

TEST_F(SamplerTest, ScratchIsNotReallocated) {
  Prng prng(9);
  const Logits logits = RandomLogits(4000, 0.1f, prng);  // flat: every threshold needs all of it
  SamplingParams params;
  params.top_k = 3999;
  params.top_p = 0.999f;
  params.frequency_penalty = 0.1f;
  const Ids tokens = {1, 2, 3};
  Draw(logits, params, {tokens, tokens, {}});
  const auto* candidates = scratch_.candidates.data();
  const auto* selection = scratch_.selection.data();
  const auto* copy = scratch_.logits.data();
  for (int i = 0; i < 20; ++i) {
    params.seed = static_cast<std::uint64_t>(i);
    Draw(logits, params, {tokens, tokens, {}});
  }
  EXPECT_EQ(scratch_.candidates.data(), candidates);
  EXPECT_EQ(scratch_.selection.data(), selection);
  EXPECT_EQ(scratch_.logits.data(), copy);
}

// ---- what a grammar allows

std::vector<std::uint32_t> MaskOf(std::initializer_list<TokenId> ids, std::size_t words) {
  std::vector<std::uint32_t> mask(words);
  for (const TokenId id : ids) mask[static_cast<std::size_t>(id) / 32] |= 1u << (id % 32);
  return mask;
}

TEST(SamplerGrammar, OnlyAllowedTokensAreDrawn) {
  Prng prng(5);
  SamplerScratch scratch;
  const Logits logits = RandomLogits(100, 2, prng);
  const std::vector<std::uint32_t> mask = MaskOf({3, 31, 32, 99}, 4);
  SamplerContext context;
  context.allowed = mask;
  std::map<TokenId, int> counts;
  for (int i = 0; i < 400; ++i) {
    SamplingParams params{.temperature = i % 2 == 0 ? 1.0f : 5.0f, .top_k = i % 3 == 0 ? 2 : 0, .seed = prng.Next()};
    ++counts[Sample(logits, params, context, scratch).id];
  }
  for (const auto& [id, count] : counts) EXPECT_TRUE(id == 3 || id == 31 || id == 32 || id == 99) << id;
  EXPECT_EQ(counts.size(), 4u);
  const SamplingParams greedy{.temperature = 0};
  TokenId best = 3;
  for (const TokenId id : {31, 32, 99}) best = logits[id] > logits[best] ? id : best;
  EXPECT_EQ(Sample(logits, greedy, context, scratch).id, best);
}

TEST(SamplerGrammar, LogprobsAreThoseOfTheAllowedTokens) {
  SamplerScratch scratch;
  const Logits logits = {9, 1, 1, 9};
  const std::vector<std::uint32_t> mask = MaskOf({1, 2}, 1);
  SamplerContext context;
  context.allowed = mask;
  const SampledToken token = Sample(logits, {.temperature = 0, .top_logprobs = 3}, context, scratch);
  EXPECT_EQ(token.id, 1);
  EXPECT_NEAR(token.logprob, std::log(0.5), 1e-6);
  ASSERT_EQ(token.top_logprobs.size(), 3u);
  EXPECT_NEAR(token.top_logprobs[1].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(token.top_logprobs[2].logprob, -kInfinity);
}

TEST(SamplerGrammar, ABanHoldsOnlyWhileSomethingElseIsAllowed) {
  SamplerScratch scratch;
  const Logits logits = {0, 5, 1, 9};
  const std::vector<TokenId> banned = {1, 3};
  SamplerContext context;
  context.banned = banned;
  const std::vector<std::uint32_t> both = MaskOf({1, 2}, 1), only = MaskOf({1}, 1);
  context.allowed = both;
  EXPECT_EQ(Sample(logits, {.temperature = 0}, context, scratch).id, 2);
  context.allowed = only;
  EXPECT_EQ(Sample(logits, {.temperature = 0}, context, scratch).id, 1);
}

TEST(SamplerGrammar, IrregularLogitsGiveAnAllowedToken) {
  SamplerScratch scratch;
  const std::vector<std::uint32_t> mask = MaskOf({2}, 1);
  SamplerContext context;
  context.allowed = mask;
  for (const Logits& logits : {Logits{1, 2, kNan}, Logits{kInfinity, 2, -kInfinity}, Logits{kNan, kNan, kNan}}) {
    EXPECT_EQ(Sample(logits, {.temperature = 0}, context, scratch).id, 2);
  }
  const std::vector<std::uint32_t> beyond = MaskOf({40}, 2);  // a token that the model does not have
  context.allowed = beyond;
  EXPECT_EQ(Sample(Logits{1, 2, 3}, {.temperature = 0}, context, scratch).id, 0);
}

}  // namespace
}  // namespace loramux::sampler_test
