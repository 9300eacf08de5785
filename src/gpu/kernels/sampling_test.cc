// What needs no sampler to compare with; model/device_sampler_test.cc compares with the processor's.
#include "gpu/kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "gpu/device_arrays_for_test.h"
#include "gpu/device_for_test.h"
#include "step/sample_batch.h"

namespace loramux::gpu::sampling_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::int32_t> Argmax(const std::vector<std::vector<float>>& rows) {
  const std::size_t vocabulary = rows.front().size(), stride = vocabulary + 1;
  std::vector<float> logits(rows.size() * stride, kInfinity);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::copy(rows[i].begin(), rows[i].end(), logits.begin() + static_cast<std::ptrdiff_t>(i * stride));
  }
  DeviceArrays arrays(DeviceForTest());
  auto* tokens = arrays.Upload(std::vector<std::int32_t>(rows.size() + 1, 99));
  ArgmaxRows(arrays.stream(), static_cast<std::int64_t>(rows.size()) + 1,
             {.logits = arrays.Upload(logits),
              .vocab = static_cast<std::int64_t>(vocabulary),
              .stride = static_cast<std::int64_t>(stride),
              .rows = arrays.Upload(std::vector<std::int32_t>{static_cast<std::int32_t>(rows.size())}),
              .tokens = tokens});
  std::vector<std::int32_t> found = arrays.Download(tokens, rows.size() + 1);
  EXPECT_EQ(found.back(), 99);  // the grid is larger than the work
  found.pop_back();
  return found;
}

TEST(ArgmaxRowsTest, TakesTheFirstMaximum) {
  EXPECT_EQ(Argmax({{1, 5, 3, 5}, {-4, -5, -6, -4}, {-0.0f, 0, -1, 0}, {-kInfinity, -kInfinity, -9, -kInfinity}}),
            (std::vector<std::int32_t>{1, 0, 0, 2}));
}

TEST(ArgmaxRowsTest, LeavesIrregularRowsToTheProcessor) {
  EXPECT_EQ(Argmax({{1, kNan, 3}, {-kNan, 1, 2}, {1, kInfinity, 3}, {-kInfinity, -kInfinity, -kInfinity}, {1, 2, 3}}),
            (std::vector<std::int32_t>{-1, -1, -1, -1, 2}));
}

TEST(ArgmaxRowsTest, AgreesWithTheHostForManySizes) {
  Prng prng(21);
  for (const std::size_t vocabulary : {1, 2, 31, 511, 512, 513, 4'095, 4'097, 30'011}) {
    std::vector<std::vector<float>> rows(3, std::vector<float>(vocabulary));
    std::vector<std::int32_t> expected;
    for (std::vector<float>& row : rows) {
      for (float& logit : row) logit = std::round(static_cast<float>(prng.NextDouble() * 4'000 - 2'000));
      expected.push_back(static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    }
    EXPECT_EQ(Argmax(rows), expected) << vocabulary;
  }
}

// As the processor: the first token whose cumulative weight is above the share.
TEST(SampleRowsTest, TokensWithoutAWeightAreNeverDrawn) {
  DeviceArrays arrays(DeviceForTest());
  std::vector<DeviceSampleRow> samples;
  for (const double draw : {0.0, 0.25, 0.5, 0.75, 1 - 0x1p-53}) samples.push_back({.draw = draw, .depth = kInfinity});
  const auto count = static_cast<std::int32_t>(samples.size());
  auto* results = arrays.Allocate<SampledOnDevice>(samples.size());
  SampleRows(arrays.stream(), count,
             {.logits = arrays.Upload(std::vector<float>{-kInfinity, 0, -kInfinity, 0, -kInfinity}),
              .vocab = 5,
              .stride = 5,
              .samples = arrays.Upload(samples),
              .rows = arrays.Upload(std::vector<std::int32_t>{count}),
              .results = results});
  std::vector<std::int32_t> tokens;
  for (const SampledOnDevice& result : arrays.Download(results, samples.size())) tokens.push_back(result.token);
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{1, 1, 3, 3, 3}));
}

TEST(ToDeviceRowTest, KeepsTheParametersAndDrawsByTheSeed) {
  SamplingParams params{.temperature = 0.5f, .top_k = 7, .top_p = 0.9f, .min_p = 0.25f, .seed = 5};
  const std::vector<LogitBias> biases = {{3, 1.0f}};
  const std::vector<TokenId> generated = {1, 2, 3}, banned = {4};
  SampleBatch batch;
  const SamplerContext context = {.generated = generated, .banned = banned, .logit_bias = biases};
  batch.Add(params, context);
  params.seed = 6;
  params.temperature = 0;
  params.frequency_penalty = 1;
  batch.Add(params, context);
  const DeviceSampleRow first = ToDeviceRow(batch.rows[0], 8, -1), second = ToDeviceRow(batch.rows[1], 9, 2);
  EXPECT_EQ(first.inverse_temperature, 2.0f);
  EXPECT_EQ(first.top_k, 7);
  EXPECT_EQ(first.top_p, static_cast<double>(0.9f));
  EXPECT_FLOAT_EQ(first.depth, std::log(4.0f));
  EXPECT_EQ(first.draw, UnitDouble(SplitMix64(SplitMix64(5) + 3)));
  EXPECT_EQ(first.greedy, 0);
  EXPECT_EQ(first.logits_row, 8);
  EXPECT_EQ(first.mask, -1);
  EXPECT_EQ(first.generated.size, 0u);  // no penalty reads them
  EXPECT_EQ(second.greedy, 1);
  EXPECT_EQ(second.mask, 2);
  EXPECT_EQ(second.generated.size, 3u);
  EXPECT_EQ(second.banned.first, 4u);
  EXPECT_EQ(second.biases.first, 1u);
  EXPECT_NE(first.draw, second.draw);
}

TEST(ToSampledTokenTest, MakesLogprobsOfLogits) {
  SampledOnDevice result;
  result.token = 3;
  result.logit = 1;
  result.max = 2;
  result.total = 2;
  result.top_tokens[0] = 5;
  result.top_logits[0] = 2;
  result.top_logits[1] = -kInfinity;
  const SampledToken token = ToSampledToken(result, 2, 100);
  EXPECT_FLOAT_EQ(token.logprob, -1 - std::log(2.0f));
  ASSERT_EQ(token.top_logprobs.size(), 2u);
  EXPECT_EQ(token.top_logprobs[0].id, 5);
  EXPECT_FLOAT_EQ(token.top_logprobs[0].logprob, -std::log(2.0f));
  EXPECT_EQ(token.top_logprobs[1].logprob, -kInfinity);
  EXPECT_EQ(ToSampledToken(result, 20, 1).top_logprobs.size(), 1u);  // a small vocabulary
  EXPECT_EQ(ToSampledToken(result, -1, 100).logprob, 0);
  result.max = kInfinity;
  EXPECT_EQ(ToSampledToken(result, 0, 100).logprob, -kInfinity);
  result.logit = kInfinity;
  EXPECT_EQ(ToSampledToken(result, 0, 100).logprob, 0);
}

}  // namespace
}  // namespace loramux::gpu::sampling_test
