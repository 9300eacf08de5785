// Predicts the time of a step on a device, and of a transfer, as a linear function of the work. CaraServe (section 5)
// models prefill and decode as linear in the batch size. For adapters it adds a term in (batch size x largest rank) for
// the padded kernel, `bgmv`, or in the sum of ranks for the kernel at true ranks, `mbgmv`. Here both phases may share a
// step, so one sum has all terms.
//
// A model is fitted by `loramux profile`, or written down for a known device (simulate/). The simulator and the
// scheduler use it (service_times.h, schedule/plan_by_model.h). docs/design/performance-model.md explains each term.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "costs/cpu_assist.h"

namespace loramux {

// The work of a step, as far as its time depends on it.
struct StepLoad {
  std::int64_t prefill_tokens = 0;     // tokens in chunks of more than one token
  std::int64_t decode_sequences = 0;   // chunks of one token
  std::int64_t prefill_attention = 0;  // sum over prefill tokens of the positions that each attends to
  std::int64_t decode_context = 0;     // sum over decoding sequences of the positions that each attends to
  std::int64_t adapter_tokens = 0;     // tokens of both kinds that use an adapter
  std::int64_t rank_sum = 0;           // sum of the ranks of the distinct adapters in the batch
  std::int64_t max_rank = 0;           // largest rank in the batch
  std::int64_t distinct_adapters = 0;
  std::int64_t token_ranks = 0;        // sum over adapter_tokens of the rank of the adapter; 0: unknown, and
                                       // estimated as adapter_tokens x the mean rank of the adapters
  std::int64_t prefill_sequences = 0;  // chunks of more than one token
  std::int64_t prefill_context = 0;    // sum over these chunks of the positions up to the last one: keys and values
                                       // to read
  // Number of steps since one with prefill tokens, which evicted the data of decoding from the processor caches.
  // 0: there was none, or it was more than kColdSteps ago.
  std::int32_t after_prefill = 0;
};
// Steps after a prefill until the data of decoding is in the processor caches again.
inline constexpr std::int32_t kColdSteps = 8;
// The value of StepLoad::after_prefill for the step after this one.
inline std::int32_t StepsAfterPrefill(const StepLoad& step) {
  if (step.prefill_tokens > 0) return 1;
  return step.after_prefill > 0 && step.after_prefill < kColdSteps ? step.after_prefill + 1 : 0;
}

// A point of a table of factors: measured seconds divided by those of the linear terms, for steps of so many tokens.
struct StepFactor {
  double tokens = 0, factor = 1;
};

// The kernel that the adapter terms describe: padded to the largest rank, or at true ranks.
enum class LoraCostShape : std::uint8_t { kBgmv, kMbgmv };

// A performance model. Coefficients are in seconds per unit of what they count, and not negative.
struct PerformanceModel {
  std::string device;  // in words
  // Coefficients of the linear terms.
  double step = 0;  // each step: launch, and reading the weights
  double per_prefill_token = 0;
  double per_prefill_sequence = 0;  // each chunk: products with few rows, and its logits
  double per_decode_sequence = 0;
  double per_prefill_attention = 0;
  double per_prefill_context = 0;
  double per_decode_context = 0;
  // Tokens that the kernels compute at a time. An incomplete tile takes about as long as a full one, so
  // per_token_tile counts the tokens of a step rounded up to tiles. 0: no tiles.
  std::int64_t token_tile = 0;
  double per_token_tile = 0;
  double per_adapter = 0;             // each distinct one
  double per_adapter_token = 0;       // each token with an adapter, at any rank
  double per_adapter_token_rank = 0;  // mbgmv: tokens x rank; arithmetic
  double per_rank = 0;                // mbgmv: sum of ranks; reading the adapters
  double per_padded_rank = 0;         // bgmv: batch tokens x largest rank
  double per_padded_adapter = 0;      // bgmv: distinct adapters x largest rank
  // A mixture of experts: how many a layer has, and how many a token takes. count 0: it is none.
  struct Experts {
    std::int64_t count = 0, per_token = 0;

    // Experts of a layer that at least one of `tokens` takes, expected if a token takes each as likely as any other.
    double Taken(double tokens) const;
    friend bool operator==(const Experts&, const Experts&) = default;
  };
  Experts experts;
  // Each sequence: reading and writing its states (layers of linear attention). Of described devices alone: profiles
  // have it in per_prefill_sequence and per_decode_sequence.
  double per_state = 0;
  double per_expert = 0;       // each expert taken: reading its weights
  double per_expert_rank = 0;  // mbgmv: each (adapter, expert) pair that a token takes x the adapters' mean rank
  LoraCostShape shape = LoraCostShape::kMbgmv;
  // Minimum seconds of a step: the weights are read once per step, so a small step takes as long as a larger one. 0: no
  // floor.
  double floor = 0;
  // Minimum seconds of the products with the base weights (per_prefill_token and per_decode_sequence). Attention and
  // adapters read other memory, so their time is added to it. 0: no such floor.
  double dense_floor = 0;
  double expert_floor = 0;  // what each expert taken adds to dense_floor
  // Corrections of the linear terms for steps that only decode, that only prefill, and that do both. SecondsOf
  // multiplies the sum by the factor, interpolated over the logarithm of the tokens of the step and constant beyond the
  // ends. Tokens and factors are positive; tokens ascend. An empty table is a factor of 1, except that empty
  // mixed_factors are replaced by prefill_factors.
  std::vector<StepFactor> decode_factors, prefill_factors, mixed_factors;
  // Seconds that the first step without prefill tokens takes longer after a step with some, because weights and
  // adapters left the processor caches; and the factor (below 1) by which this excess shrinks with each further step.
  double after_prefill = 0, after_prefill_decay = 0;
  // Additional seconds for each sequence in all kColdSteps, because keys, values and adapter left the caches too. They
  // are too many to come back within one step.
  double after_prefill_per_sequence = 0;
  // Seconds on the engine thread between the end of a step and the start of the next: collecting results, planning. Not
  // part of SecondsOf.
  double between_steps = 0;
  // Seconds from sending a request until a sleeping engine sees it. Not part of SecondsOf.
  double submit_latency = 0;

  // A link between tiers: a transfer takes latency + bytes / bytes_per_second, and per_piece for each piece of
  // piece_bytes, the last one perhaps shorter. Profiles have no pieces: what they cost is in the measured latency.
  struct Link {
    double latency = 0;  // seconds
    double bytes_per_second = 0;
    double piece_bytes = 0;  // 0: one piece, at no cost
    double per_piece = 0;    // seconds, to start the copy of one

    // Seconds that a transfer of `bytes` occupies the link, which are all but the latency.
    double OccupiedSeconds(double bytes) const;
  };
  Link disk, host_to_device, device_to_host;

  // What it costs to compute with adapters that are still on their way. Not part of SecondsOf.
  CpuAssist assist;

  // Predicted seconds of a step.
  double SecondsOf(const StepLoad& load) const;
  // The same without the factors and without the excess after a prefill: the form of CaraServe's model.
  double LinearSecondsOf(const StepLoad& load) const;
  // The part of LinearSecondsOf that the products with the base weights take.
  double BaseProductSeconds(const StepLoad& load) const;
  // The minimum seconds of the products with the base weights in a step of so many tokens.
  double DenseFloor(double tokens) const { return dense_floor + expert_floor * experts.Taken(tokens); }
};

// One summand of PerformanceModel::LinearSecondsOf: a coefficient times a count.
struct PerformanceTerm {
  const char* name;  // name of the coefficient in profile files
  double PerformanceModel::*coefficient;
  double (*count)(const PerformanceModel& model, const StepLoad& load);
  bool of_experts = false;  // it counts nothing in a model without experts
};
// The summands of a model of this shape. The coefficients of the other shape are ignored.
std::span<const PerformanceTerm> PerformanceTerms(LoraCostShape shape);

// A member of PerformanceModel that is a table of factors, and all such members.
using FactorTable = std::vector<StepFactor> PerformanceModel::*;
inline constexpr FactorTable kFactorTables[] = {&PerformanceModel::decode_factors, &PerformanceModel::prefill_factors,
                                                &PerformanceModel::mixed_factors};
// The table for steps with this load.
FactorTable FactorTableOf(const StepLoad& load);

// The name of the shape: "bgmv" or "mbgmv".
const char* LoraCostShapeName(LoraCostShape shape);

}  // namespace loramux
