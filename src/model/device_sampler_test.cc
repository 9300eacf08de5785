// The device's sampler against the processor's: the same tokens.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "gpu/device_arrays_for_test.h"
#include "gpu/device_for_test.h"
#include "gpu/kernels/sampling.h"
#include "model/random_logits_for_test.h"
#include "model/sampler.h"
#include "step/sample_batch.h"

namespace loramux::device_sampler_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Logits = std::vector<float>;
using Ids = std::vector<TokenId>;
using Mask = std::vector<std::uint32_t>;

// One token to sample, with all that it refers to.
struct Row {
  Logits logits;
  SamplingParams params;
  Ids prompt, generated, banned;
  Mask allowed;  // empty: any token
  std::vector<LogitBias> biases;

  SamplerContext Context() const {
    return {.prompt = prompt, .generated = generated, .banned = banned, .allowed = allowed, .logit_bias = biases};
  }
};

Mask MaskOf(const Ids& ids, std::size_t words) {
  Mask mask(words);
  for (const TokenId id : ids) mask[static_cast<std::size_t>(id) / 32] |= 1u << (id % 32);
  return mask;
}

class DeviceSampler : public ::testing::Test {
 protected:
  // Samples all rows in one launch, with one block too many. REQUIRES: the vocabularies are equal.
  std::vector<SampledToken> SampleOnDevice(const std::vector<Row>& rows) {
    const std::size_t vocabulary = rows.front().logits.size();
    const std::size_t stride = vocabulary + 3;
    std::size_t mask_words = 0;
    for (const Row& row : rows) mask_words = std::max(mask_words, row.allowed.size());
    SampleBatch batch;
    Logits logits(rows.size() * stride, 100.0f);
    Mask masks;
    std::vector<gpu::DeviceSampleRow> samples;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      batch.Add(rows[i].params, rows[i].Context());
      const std::size_t logits_row = rows.size() - 1 - i;
      std::copy(rows[i].logits.begin(), rows[i].logits.end(), logits.begin() + logits_row * stride);
      const bool constrained = !rows[i].allowed.empty();
      const auto mask = static_cast<std::int32_t>(constrained ? masks.size() / mask_words : 0);
      if (constrained) {
        masks.insert(masks.end(), rows[i].allowed.begin(), rows[i].allowed.end());
        masks.resize((static_cast<std::size_t>(mask) + 1) * mask_words);
      }
      EXPECT_TRUE(gpu::DeviceSamples(batch.rows[i]));
      samples.push_back(
          gpu::ToDeviceRow(batch.rows[i], static_cast<std::int32_t>(logits_row), constrained ? mask : -1));
    }
    std::vector<gpu::TokenBias> biases;
    for (const auto& [id, bias] : batch.biases) biases.push_back({id, bias});
    gpu::DeviceArrays arrays(gpu::DeviceForTest());
    gpu::SampleRowsArguments arguments;
    arguments.logits = arrays.Upload(logits);
    arguments.vocab = static_cast<std::int64_t>(vocabulary);
    arguments.stride = static_cast<std::int64_t>(stride);
    arguments.samples = arrays.Upload(samples);
    arguments.rows = arrays.Upload(std::vector<std::int32_t>{static_cast<std::int32_t>(rows.size())});
    arguments.biases = arrays.Upload(biases);
    arguments.tokens = arrays.Upload(batch.tokens);
    arguments.masks = arrays.Upload(masks);
    arguments.mask_words = static_cast<std::int64_t>(mask_words);
    arguments.bias_logits = arrays.Allocate<float>(biases.size());
    arguments.token_logits = arrays.Allocate<float>(batch.tokens.size());
    arguments.results = arrays.Allocate<gpu::SampledOnDevice>(rows.size());
    gpu::SampleRows(arrays.stream(), static_cast<std::int64_t>(rows.size()) + 1, arguments);
    std::vector<SampledToken> tokens;
    for (const gpu::SampledOnDevice& result : arrays.Download(arguments.results, rows.size())) {
      const std::int32_t top_logprobs = rows[tokens.size()].params.top_logprobs;
      tokens.push_back(gpu::ToSampledToken(result, top_logprobs, arguments.vocab));
    }
    return tokens;
  }

  std::vector<ScoredToken> ScoreOnDevice(const std::vector<Logits>& rows, const std::vector<ScoreRow>& scores) {
    const std::size_t vocabulary = rows.front().size();
    Logits logits;
    std::vector<gpu::DeviceScoreRow> on_device;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      logits.insert(logits.end(), rows[i].begin(), rows[i].end());
      EXPECT_TRUE(gpu::DeviceScores(scores[i]));
      on_device.push_back(gpu::ToDeviceRow(scores[i], static_cast<std::int32_t>(i)));
    }
    gpu::DeviceArrays arrays(gpu::DeviceForTest());
    gpu::ScoreRowsArguments arguments;
    arguments.logits = arrays.Upload(logits);
    arguments.vocab = arguments.stride = static_cast<std::int64_t>(vocabulary);
    arguments.scores = arrays.Upload(on_device);
    arguments.rows = arrays.Upload(std::vector<std::int32_t>{static_cast<std::int32_t>(rows.size())});
    arguments.results = arrays.Allocate<gpu::SampledOnDevice>(rows.size());
    gpu::ScoreRows(arrays.stream(), static_cast<std::int64_t>(rows.size()) + 1, arguments);
    std::vector<ScoredToken> tokens;
    for (const gpu::SampledOnDevice& result : arrays.Download(arguments.results, rows.size())) {
      tokens.push_back(gpu::ToScoredToken(result, scores[tokens.size()].top_logprobs, arguments.vocab));
    }
    return tokens;
  }

  void ExpectSameTokens(const std::vector<Row>& rows) {
    const std::vector<SampledToken> tokens = SampleOnDevice(rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE("row " + std::to_string(i));
      const SampledToken expected = Sample(rows[i].logits, rows[i].params, rows[i].Context(), scratch_);
      EXPECT_EQ(tokens[i].id, expected.id);
      ExpectNear(tokens[i].logprob, expected.logprob);
      ExpectSameTop(tokens[i].top_logprobs, expected.top_logprobs);
    }
  }

  static void ExpectNear(float a, float b) {
    if (a != b) {  // infinities
      EXPECT_NEAR(a, b, 1e-5f + std::abs(b) * 1e-6f);
    }
  }

  static void ExpectSameTop(const std::vector<TokenLogprob>& top, const std::vector<TokenLogprob>& expected) {
    ASSERT_EQ(top.size(), expected.size());
    for (std::size_t i = 0; i < top.size(); ++i) {
      EXPECT_EQ(top[i].id, expected[i].id) << "place " << i;
      ExpectNear(top[i].logprob, expected[i].logprob);
    }
  }

  SamplerScratch scratch_;
};

// Every parameter with some probability.
Row RandomRow(std::size_t vocabulary, Prng& prng) {
  const auto chance = [&](std::uint64_t one_in) { return prng.NextBelow(one_in) == 0; };
  const auto uniform = [&](double low, double high) {
    return static_cast<float>(low + prng.NextDouble() * (high - low));
  };
  const auto tokens = [&](std::size_t below) {
    Ids ids(prng.NextBelow(below));
    for (TokenId& id : ids) id = static_cast<TokenId>(prng.NextBelow(vocabulary + 2)) - 1;
    return ids;
  };
  Row row;
  row.logits = RandomLogits(vocabulary, chance(5) ? 0.01 : prng.NextDouble() * 6, prng);
  if (chance(4)) {  // many ties
    for (float& logit : row.logits) logit = std::round(logit);
  }
  SamplingParams& params = row.params;
  params.temperature = chance(5) ? 0 : uniform(0.05, 2);
  params.seed = prng.Next();
  if (chance(2)) params.top_k = static_cast<std::int32_t>(prng.NextBelow(chance(2) ? 100 : vocabulary + 3));
  if (chance(2)) params.top_p = uniform(0, 1);
  if (chance(3)) params.min_p = uniform(0, 0.3);
  if (chance(3)) params.presence_penalty = uniform(-2, 2);
  if (chance(3)) params.frequency_penalty = uniform(-2, 2);
  if (chance(3)) params.repetition_penalty = uniform(0.5, 1.5);
  if (chance(2)) params.top_logprobs = static_cast<std::int32_t>(prng.NextBelow(gpu::kMaxTopOnDevice + 1));
  for (const TokenId id : tokens(6)) row.biases.emplace_back(id, uniform(-2, 2));
  if (row.biases.size() > 2) row.biases.push_back(row.biases.front());
  row.prompt = tokens(chance(2) ? 20 : 2000);
  row.generated = tokens(chance(2) ? 20 : 2000);
  if (chance(2)) row.banned = tokens(4);
  if (chance(3)) {
    row.allowed = Mask(vocabulary / 32 + prng.NextBelow(3));
    const bool few = chance(2);
    for (std::uint32_t& word : row.allowed) {
      word = static_cast<std::uint32_t>(prng.Next());
      if (few) word &= static_cast<std::uint32_t>(prng.Next() & prng.Next() & prng.Next() & prng.Next());
    }
  }
  return row;
}

TEST_F(DeviceSampler, DrawsTheTokensOfTheProcessor) {
  Prng prng(11);
  for (const auto& [vocabulary, count] :
       {std::pair{500, 200}, {1, 5}, {2, 10}, {33, 20}, {4097, 100}, {20'000, 40}, {33'000, 20}}) {
    SCOPED_TRACE("vocabulary " + std::to_string(vocabulary));
    std::vector<Row> rows;
    for (int i = 0; i < count; ++i) rows.push_back(RandomRow(static_cast<std::size_t>(vocabulary), prng));
    ExpectSameTokens(rows);
  }
}

// The logits of a model: a few likely tokens. One threshold or two, as clients set them.
TEST_F(DeviceSampler, DrawsWithUsualParameters) {
  Prng prng(12);
  std::vector<Row> rows;
  for (int i = 0; i < 120; ++i) {
    Row row{.logits = RandomLogits(2'000, 3, prng)};
    row.params = {.temperature = 0.8f, .seed = prng.Next()};
    if (i % 2 == 0) row.params.top_p = 0.95f;
    if (i % 3 == 0) row.params.top_k = 20;
    if (i % 5 == 0) row.params.min_p = 0.05f;
    rows.push_back(std::move(row));
  }
  ExpectSameTokens(rows);
}

TEST_F(DeviceSampler, ThresholdsAmongManyEqualLogits) {
  std::vector<Row> rows;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    for (const auto& [top_k, top_p] : {std::pair{0, 0.5f}, {0, 0.999f}, {3'000, 1.0f}, {3'000, 0.7f}, {1, 0.5f}}) {
      Row row{.logits = Logits(5'000, 1.5f)};
      row.logits[4'000] = 1.75f;
      row.params = {.top_k = top_k, .top_p = top_p, .seed = seed};
      rows.push_back(std::move(row));
    }
  }
  ExpectSameTokens(rows);
}

TEST_F(DeviceSampler, EdgesOfTheThresholds) {
  Prng prng(13);
  std::vector<Row> rows;
  for (const float top_p : {0.0f, 0.25f, 0.5f, 0.75f, 1.0f, 2.0f}) {
    for (const float min_p : {0.0f, 1e-30f, 0.5f, 1.0f, 2.0f}) {
      for (const int top_k : {-1, 0, 1, 2, 4, 5, 500}) {
        for (const Logits& logits : {Logits{0, 0, 0, 0}, Logits{1, 2, 1, 3}, Logits{-0.0f, 0.0f, -kInfinity, -0.0f}}) {
          Row row{.logits = logits};
          row.params = {.top_k = top_k, .top_p = top_p, .min_p = min_p, .seed = prng.Next()};
          rows.push_back(std::move(row));
        }
      }
    }
  }
  ExpectSameTokens(rows);
}

TEST_F(DeviceSampler, IrregularAndExtremeLogits) {
  const float n = kNan, i = kInfinity;
  std::vector<Row> rows;
  for (const Logits& logits : {Logits{1, n, 4, i, 4}, Logits{n, n, -i, n, n}, Logits{n, -3, -i, -n, -4},
                               Logits{1, i, 4, i, 2}, Logits{-i, -i, -i, -i, -i}, Logits{5, -i, 5, -i, -i},
                               Logits{1e30f, -1e30f, 3e38f, -3e38f, 0}, Logits{-90, 0, -86, -87, -88}}) {
    for (const float temperature : {0.0f, 1e-6f, 1e-4f, 1.0f, 1e30f}) {
      for (const Ids& banned : {Ids{}, Ids{0, 2, 2, 77, -1}, Ids{0, 1, 2, 3, 4}}) {
        for (const Mask& allowed : {Mask{}, Mask{0b10101}, Mask{0b00100, 0}, Mask{0, 1}}) {
          Row row{.logits = logits, .banned = banned, .allowed = allowed};
          row.params = {.temperature = temperature, .top_k = 3, .top_p = 0.9999f, .top_logprobs = 4};
          rows.push_back(row);
          row.params.top_k = 0;
          row.params.top_logprobs = 20;
          rows.push_back(std::move(row));
        }
      }
    }
  }
  ExpectSameTokens(rows);
}

TEST_F(DeviceSampler, BanAndBiasComeBeforeThePenalties) {
  std::vector<Row> rows;
  Row row{.logits = {2, 5.5f, 1, 2}, .prompt = {0}, .generated = {3, 3, 3, 900}};
  row.params = {.temperature = 0, .repetition_penalty = 2.0f, .top_logprobs = 2};
  row.biases = {{0, 8.0f}, {0, 1e8f}, {0, -1e8f}};
  rows.push_back(row);
  row.params.frequency_penalty = -4.0f;
  rows.push_back(row);
  row.banned = {1, 3};
  row.biases = {{1, 100.0f}};
  rows.push_back(row);
  ExpectSameTokens(rows);
}

TEST_F(DeviceSampler, ABanHoldsOnlyWhileSomethingElseIsAllowed) {
  Row row{.logits = {0, 5, 1, 9}, .banned = {1, 3}};
  row.params.temperature = 0;
  std::vector<Row> rows;
  for (const Ids& ids : {Ids{1, 2}, Ids{1}, Ids{1, 3}, Ids{1, 40}}) {
    row.allowed = MaskOf(ids, 2);
    rows.push_back(row);
  }
  ExpectSameTokens(rows);
}

TEST_F(DeviceSampler, ARowDoesNotDependOnItsNeighbours) {
  Prng prng(14);
  std::vector<Row> rows;
  for (int i = 0; i < 8; ++i) {
    rows.push_back(RandomRow(3'000, prng));
    rows.back().params.top_logprobs = 3;
  }
  const std::vector<SampledToken> together = SampleOnDevice(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const SampledToken alone = SampleOnDevice({rows[i]}).front();
    EXPECT_EQ(alone.id, together[i].id);
    EXPECT_EQ(alone.logprob, together[i].logprob);
  }
}

TEST_F(DeviceSampler, ScoresLikeTheProcessor) {
  Prng prng(15);
  std::vector<Logits> rows;
  std::vector<ScoreRow> scores;
  for (int i = 0; i < 40; ++i) {
    rows.push_back(RandomLogits(1'000, 3, prng));
    if (i % 4 == 0) {
      for (float& logit : rows.back()) logit = std::round(logit);
    }
    scores.push_back({static_cast<TokenId>(prng.NextBelow(1'000)), i % (gpu::kMaxTopOnDevice + 1)});
    float& logit = rows.back()[static_cast<std::size_t>(scores.back().token)];
    if (i == 1) logit = kNan;
    if (i == 2) logit = kInfinity;
    if (i == 3) rows.back()[7] = kInfinity;
    if (i == 5) rows.back().assign(1'000, -kInfinity);
    if (i == 6) rows.back().assign(1'000, kNan);
  }
  const std::vector<ScoredToken> tokens = ScoreOnDevice(rows, scores);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE("row " + std::to_string(i));
    const ScoredToken expected = Score(rows[i], scores[i], scratch_);
    EXPECT_EQ(tokens[i].id, expected.id);
    EXPECT_EQ(tokens[i].rank, expected.rank);
    ExpectNear(tokens[i].logprob, expected.logprob);
    ExpectSameTop(tokens[i].top_logprobs, expected.top_logprobs);
  }
}

TEST(DeviceSamples, RefusesWhatDoesNotFit) {
  SampleRow row;
  row.params.top_logprobs = gpu::kMaxTopOnDevice;
  EXPECT_TRUE(gpu::DeviceSamples(row));
  row.params.top_logprobs = gpu::kMaxTopOnDevice + 1;
  EXPECT_FALSE(gpu::DeviceSamples(row));
  row = {};
  row.bias.size = gpu::kMaxListOnDevice + 1;
  EXPECT_FALSE(gpu::DeviceSamples(row));
  row = {};
  row.banned.size = gpu::kMaxListOnDevice + 1;
  EXPECT_FALSE(gpu::DeviceSamples(row));
  row = {};
  row.params.logprobs_mode = LogprobsMode::kProcessedLogprobs;
  row.logprob_ids.size = 1;
  EXPECT_TRUE(gpu::DeviceSamples(row));  // it wants no log-probabilities
  row.params.top_logprobs = 0;
  EXPECT_FALSE(gpu::DeviceSamples(row));
  row.logprob_ids.size = 0;
  EXPECT_FALSE(gpu::DeviceSamples(row));
  row.params.logprobs_mode = LogprobsMode::kRawLogprobs;
  EXPECT_TRUE(gpu::DeviceSamples(row));
  row.logprob_ids.size = 1;
  EXPECT_FALSE(gpu::DeviceSamples(row));
  EXPECT_FALSE(gpu::DeviceScores({0, gpu::kMaxTopOnDevice + 1}));
}

}  // namespace
}  // namespace loramux::device_sampler_test
