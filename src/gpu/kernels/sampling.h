// Choosing tokens on a device, with the draws of the processor's sampler (model/sampler.h): the same rules in the same
// arithmetic. Weights are the same floats; their sums are doubles in another order. A draw differs only where a random
// number or a share is within about 1e-15 of a boundary between two tokens.
//
// What is done once a row and not once a token stays on the host: random numbers, reciprocals and logarithms.
#pragma once

#include <cstdint>

#include "gpu/device.h"

namespace loramux {

struct SampleRow;
struct SampledToken;
struct ScoreRow;
struct ScoredToken;

namespace gpu {

inline constexpr std::int32_t kMaxTopOnDevice = 20;      // likeliest tokens that a row may ask for
inline constexpr std::uint32_t kMaxListOnDevice = 1024;  // biases, and banned tokens, of a row

// A part of a flat array.
struct TokenRange {
  std::uint32_t first = 0, size = 0;
};

struct TokenBias {
  std::int32_t token = 0;
  float bias = 0;
};

// One token to sample: a SampleRow in the terms of the kernel.
struct DeviceSampleRow {
  double draw = 0;                // the random number, in [0, 1)
  double top_p = 1;               // 1 or more: off
  float inverse_temperature = 1;  // not read if greedy
  float depth = 0;                // min-p keeps those with (logit - max) * inverse_temperature >= -depth
  float presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  std::int32_t greedy = 0;         // 1: the first maximum
  std::int32_t top_k = 0;          // 0 or less: off
  std::int32_t top_logprobs = -1;  // -1: no log-probabilities; at most kMaxTopOnDevice
  std::int32_t logits_row = 0;     // index of the row of logits
  std::int32_t mask = -1;          // index of the mask that says what a grammar allows; -1: any token
  TokenRange biases;
  TokenRange prompt, generated, banned;  // ranges in SampleRowsArguments::tokens
};

// One token whose log-probability is wanted.
struct DeviceScoreRow {
  std::int32_t token = 0;         // in the vocabulary
  std::int32_t top_logprobs = 0;  // at most kMaxTopOnDevice
  std::int32_t logits_row = 0;
};

// What a row gives. A log-probability is made of it on the host (ToSampledToken, ToScoredToken).
struct SampledOnDevice {
  double total = 0;  // sum of e^(logit - max)
  std::int32_t token = 0;
  // The rest is set only if the row wants log-probabilities; of the raw logits that a grammar allows, NaN as -infinity.
  std::int32_t rank = 0;  // tokens at least as likely; only of a score
  float logit = 0;        // the token's logit
  float max = 0;          // not finite: there is no distribution
  std::int32_t top_tokens[kMaxTopOnDevice] = {};
  float top_logits[kMaxTopOnDevice] = {};  // descending
};

// Everything lies in device memory. One instance: f32.
struct SampleRowsArguments {
  float* logits;  // [.., vocab], rows `stride` apart; rows with a ban, biases or penalties are changed in place
  std::int64_t vocab, stride;
  const DeviceSampleRow* samples;
  const std::int32_t* rows;    // how many
  const TokenBias* biases;     // flat arrays of the rows' ranges
  const std::int32_t* tokens;  // ids outside the vocabulary are ignored
  const std::uint32_t* masks;  // [.., mask_words], the lowest token in the lowest bit; those beyond are not allowed
  std::int64_t mask_words;
  // Scratch as long as `biases` and `tokens`; read only for rows that want log-probabilities.
  float* bias_logits;
  float* token_logits;
  SampledOnDevice* results;  // [rows]
};

struct ScoreRowsArguments {
  const float* logits;
  std::int64_t vocab, stride;
  const DeviceScoreRow* scores;
  const std::int32_t* rows;
  SampledOnDevice* results;  // [rows]
};

// tokens[i] = the lowest index of the largest logit of row i; -1 if the row holds a NaN or its largest logit is not
// finite (the processor then decides). One instance: f32.
struct ArgmaxRowsArguments {
  const float* logits;  // [rows, vocab]
  std::int64_t vocab, stride;
  const std::int32_t* rows;
  std::int32_t* tokens;  // [rows]
};

// Launch for up to `max_rows` rows. REQUIRES: DeviceSamples or DeviceScores of each row; vocab < 2^31.
void SampleRows(DeviceStream& stream, std::int64_t max_rows, const SampleRowsArguments& arguments);
void ScoreRows(DeviceStream& stream, std::int64_t max_rows, const ScoreRowsArguments& arguments);
void ArgmaxRows(DeviceStream& stream, std::int64_t max_rows, const ArgmaxRowsArguments& arguments);

// Whether the device serves the row: few enough alternatives, biases and banned tokens, and log-probabilities, if any,
// of the likeliest tokens in the usual mode. The processor samples the rest.
bool DeviceSamples(const SampleRow& row);
bool DeviceScores(const ScoreRow& row);

// The row in the kernel's terms. The ranges refer to flat arrays as long as those of the SampleBatch.
DeviceSampleRow ToDeviceRow(const SampleRow& row, std::int32_t logits_row, std::int32_t mask);
DeviceScoreRow ToDeviceRow(const ScoreRow& row, std::int32_t logits_row);

// The result in the sampler's terms. `top_logprobs` as in the row; at most `vocab` alternatives.
SampledToken ToSampledToken(const SampledOnDevice& result, std::int32_t top_logprobs, std::int64_t vocab);
ScoredToken ToScoredToken(const SampledOnDevice& result, std::int32_t top_logprobs, std::int64_t vocab);

}  // namespace gpu
}  // namespace loramux
