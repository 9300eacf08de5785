// How long a step takes on a device, and how long a transfer: linear in what they do. CaraServe (section 5) models
// prefill and decode as linear in the batch size and, for adapters, in (batch size x largest rank) for the padded
// kernel, `bgmv`, or in the sum of ranks for the one at true ranks, `mbgmv`. Here both phases may share a step, so one
// sum has them all.
//
// Fitted by `loramux profile`, or written down for a known device (simulate/). Read by the simulator and the scheduler
// (service_times.h).
// docs/design/performance-model.md says what each term stands for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"

namespace loramux {

// What a step computes, as far as its time depends on it.
struct StepLoad {
  std::int64_t prefill_tokens = 0;     // tokens of chunks of more than one token
  std::int64_t decode_sequences = 0;   // chunks of one token
  std::int64_t prefill_attention = 0;  // sum over prefill tokens of the positions that each attends to
  std::int64_t decode_context = 0;     // sum over decoding sequences of the positions that each attends to
  std::int64_t adapter_tokens = 0;     // tokens, of either kind, that are computed with an adapter
  std::int64_t rank_sum = 0;           // of distinct adapters in the batch
  std::int64_t max_rank = 0;           // of the batch
  std::int64_t distinct_adapters = 0;
  std::int64_t token_ranks = 0;        // sum over adapter_tokens of the adapter's rank; 0: not known, taken as
                                       // adapter_tokens x the mean rank of the adapters
  std::int64_t prefill_sequences = 0;  // chunks of more than one token
  std::int64_t prefill_context = 0;    // sum over them of the positions up to their last: keys and values to read
  // So many steps after one with prefill tokens, which has driven what decoding reads out of the caches; 0: none, or
  // long ago.
  std::int32_t after_prefill = 0;
};
inline constexpr std::int32_t kColdSteps = 8;  // then what decoding reads is near again
// StepLoad::after_prefill of the step that comes after this one.
inline std::int32_t StepsAfterPrefill(const StepLoad& step) {
  if (step.prefill_tokens > 0) return 1;
  return step.after_prefill > 0 && step.after_prefill < kColdSteps ? step.after_prefill + 1 : 0;
}

// Measured seconds over those of the linear terms, for steps of about so many tokens.
struct StepFactor {
  double tokens = 0, factor = 1;
};

enum class LoraCostShape : std::uint8_t { kBgmv, kMbgmv };

struct PerformanceModel {
  std::string device;  // in words
  // Seconds.
  double step = 0;  // of any step: launch, and reading the weights
  double per_prefill_token = 0;
  double per_prefill_sequence = 0;  // each chunk: its own products with few rows, and its logits
  double per_decode_sequence = 0;
  double per_prefill_attention = 0;
  double per_prefill_context = 0;
  double per_decode_context = 0;
  // The kernels compute so many tokens at a time, and a part of them takes about as long as all: the tokens of a step,
  // rounded up to whole tiles. 0: no such steps.
  std::int64_t token_tile = 0;
  double per_token_tile = 0;
  double per_adapter = 0;             // each distinct one
  double per_adapter_token = 0;       // each token with an adapter, whatever its rank
  double per_adapter_token_rank = 0;  // mbgmv: tokens x rank, arithmetic
  double per_rank = 0;                // mbgmv: of the sum of ranks, reading the adapters
  double per_padded_rank = 0;         // bgmv: batch tokens x largest rank
  double per_padded_adapter = 0;      // bgmv: distinct adapters x largest rank
  LoraCostShape shape = LoraCostShape::kMbgmv;
  // Weights are read once a step whatever it computes, so a small step takes as long as a larger one: the time is the
  // larger of `floor` and the sum. 0: no floor.
  double floor = 0;
  // The same, of the products with the base weights alone (per_prefill_token and per_decode_sequence): attention and
  // adapters read memory of their own, so their time comes on top. 0: no such floor.
  double dense_floor = 0;
  // What the linear terms miss, as a table: SecondsOf is the sum times the factor, interpolated in the logarithm of the
  // step's tokens and constant beyond the ends. For steps without prefill tokens, for those with nothing else, and for
  // those with both. Ascending by tokens, which are positive, as the factors; empty: the linear terms alone, for steps
  // with both prefill_factors.
  std::vector<StepFactor> decode_factors, prefill_factors, mixed_factors;
  // Seconds on top of a step without prefill tokens that comes after one with: its weights and adapters have left the
  // caches. Each of the steps behind it finds more of them there: it takes that part (below 1) of what the one before
  // it took on top.
  double after_prefill = 0, after_prefill_decay = 0;
  // And of each of its sequences, whose keys, values and adapter have left them too, in all kColdSteps: they are more
  // than one step's to bring back.
  double after_prefill_per_sequence = 0;
  // Between the end of a step and the start of the next, on the engine's thread: collecting, planning. Not in
  // SecondsOf.
  double between_steps = 0;
  // From the moment when a request is sent to the moment when an engine that sleeps sees it. Not in SecondsOf.
  double submit_latency = 0;

  struct Link {
    double latency = 0;  // seconds
    double bytes_per_second = 0;
  };
  Link disk, host_to_device, device_to_host;

  double SecondsOf(const StepLoad& load) const;
  // The same without the factors and after_prefill: CaraServe's shape.
  double LinearSecondsOf(const StepLoad& load) const;
};

// One summand of PerformanceModel::SecondsOf: a coefficient times what it counts.
struct PerformanceTerm {
  const char* name;  // of the coefficient, as in profile files
  double PerformanceModel::*coefficient;
  double (*count)(const PerformanceModel& model, const StepLoad& load);
};
// The summands of a model of this shape. The coefficients of the other shape's are not looked at.
std::span<const PerformanceTerm> PerformanceTerms(LoraCostShape shape);

using FactorTable = std::vector<StepFactor> PerformanceModel::*;
inline constexpr FactorTable kFactorTables[] = {&PerformanceModel::decode_factors, &PerformanceModel::prefill_factors,
                                                &PerformanceModel::mixed_factors};
// The one that a step of this load is of.
FactorTable FactorTableOf(const StepLoad& load);

// "bgmv", "mbgmv".
const char* LoraCostShapeName(LoraCostShape shape);

}  // namespace loramux
