#include "gpu/kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/prng.h"
#include "gpu/kernels/sampling_kernels.h"
#include "step/sample_batch.h"

namespace loramux::gpu {
namespace {

constexpr float kNoLimit = std::numeric_limits<float>::infinity();

TokenRange ToRange(FlatRange range) { return {range.first, range.size}; }

template <typename Arguments>
void LaunchRows(DeviceStream& stream, Kernel kernel, std::int64_t max_rows, const Arguments& arguments) {
  if (max_rows == 0) return;
  CHECK(arguments.vocab > 0 && arguments.vocab <= std::numeric_limits<std::int32_t>::max());
  Launch(stream, kernel, DType::kF32, {static_cast<std::uint32_t>(max_rows)}, kSamplingThreads, sizeof(SamplingShared),
         arguments);
}

// Log-softmax of one logit, with the arithmetic of the processor's sampler.
class Logprobs {
 public:
  explicit Logprobs(const SampledOnDevice& result)
      : max_(result.max), regular_(std::isfinite(result.max)), log_total_(regular_ ? std::log(result.total) : 0) {}
  float Of(float logit) const {
    if (!regular_) return logit == kNoLimit ? 0.0f : -kNoLimit;
    return static_cast<float>(static_cast<double>(logit) - max_ - log_total_);
  }

 private:
  float max_;
  bool regular_;
  double log_total_;
};

template <typename Token>
void SetLogprobs(const SampledOnDevice& result, std::int32_t top_logprobs, std::int64_t vocab, Token& token) {
  const Logprobs logprobs(result);
  token.logprob = logprobs.Of(result.logit);
  const auto n = static_cast<std::size_t>(std::min<std::int64_t>(top_logprobs, vocab));
  token.top_logprobs.reserve(n);
  for (std::size_t i = 0; i < n; ++i) {
    token.top_logprobs.push_back({result.top_tokens[i], logprobs.Of(result.top_logits[i])});
  }
}

}  // namespace

void SampleRows(DeviceStream& stream, std::int64_t max_rows, const SampleRowsArguments& arguments) {
  LaunchRows(stream, Kernel::kSampleRows, max_rows, arguments);
}

void ScoreRows(DeviceStream& stream, std::int64_t max_rows, const ScoreRowsArguments& arguments) {
  LaunchRows(stream, Kernel::kScoreRows, max_rows, arguments);
}

void ArgmaxRows(DeviceStream& stream, std::int64_t max_rows, const ArgmaxRowsArguments& arguments) {
  LaunchRows(stream, Kernel::kArgmaxRows, max_rows, arguments);
}

bool DeviceSamples(const SampleRow& row) {
  const bool usual_logprobs = row.params.top_logprobs < 0 ||
                              (row.params.logprobs_mode == LogprobsMode::kRawLogprobs && row.logprob_ids.size == 0);
  return usual_logprobs && row.params.top_logprobs <= kMaxTopOnDevice && row.bias.size <= kMaxListOnDevice &&
         row.banned.size <= kMaxListOnDevice;
}

bool DeviceScores(const ScoreRow& row) { return row.top_logprobs <= kMaxTopOnDevice; }

DeviceSampleRow ToDeviceRow(const SampleRow& row, std::int32_t logits_row, std::int32_t mask) {
  DeviceSampleRow to;
  to.greedy = row.params.temperature < SamplingParams::kGreedyBelow;
  to.inverse_temperature = 1.0f / row.params.temperature;
  to.draw = UnitDouble(SplitMix64(SplitMix64(row.params.seed) + row.generated_count));
  to.depth = row.params.min_p > 0 ? -std::log(std::min(row.params.min_p, 1.0f)) : kNoLimit;
  to.top_k = row.params.top_k;
  to.top_p = row.params.top_p;
  to.presence_penalty = row.params.presence_penalty;
  to.frequency_penalty = row.params.frequency_penalty;
  to.repetition_penalty = row.params.repetition_penalty;
  to.top_logprobs = row.params.top_logprobs;
  to.logits_row = logits_row;
  to.mask = mask;
  to.biases = ToRange(row.bias);
  to.prompt = ToRange(row.prompt);
  to.generated = ToRange(row.generated);
  to.banned = ToRange(row.banned);
  return to;
}

DeviceScoreRow ToDeviceRow(const ScoreRow& row, std::int32_t logits_row) {
  return {row.token, row.top_logprobs, logits_row};
}

SampledToken ToSampledToken(const SampledOnDevice& result, std::int32_t top_logprobs, std::int64_t vocab) {
  SampledToken token;
  token.id = result.token;
  if (top_logprobs >= 0) SetLogprobs(result, top_logprobs, vocab, token);
  return token;
}

ScoredToken ToScoredToken(const SampledOnDevice& result, std::int32_t top_logprobs, std::int64_t vocab) {
  ScoredToken token;
  token.id = result.token;
  token.rank = result.rank;
  SetLogprobs(result, std::max(top_logprobs, 0), vocab, token);
  return token;
}

}  // namespace loramux::gpu
