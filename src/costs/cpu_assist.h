// The cost of CPU assistance (CaraServe 4): while an adapter is on its way to the device, the host's processor computes
// its part of a step, layer by layer, beside the base model's products on the device. At each layer whose rows have
// arrived, the device takes over. Predicted from measured coefficients; scheduler and simulator share this.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace loramux {

struct PerformanceModel;
struct StepLoad;

// Coefficients of the assistance, for adapters on the targets that the profile was measured with.
struct CpuAssist {
  // Linear layers that share an input. The device sends it to the host once, and adds the answers before whatever needs
  // the sum.
  struct Group {
    double hand_off = 0;        // seconds of the signals to the host and back, in all layers of a step
    double per_token_rank = 0;  // seconds of one core, in all layers
    double base_share = 0;      // share of the step's base products beside which the host computes this group
  };
  static constexpr std::array<std::string_view, 5> kGroupNames = {"qkv", "o", "gate_up", "down", "lm_head"};

  std::int64_t layers = 0;  // layers of the model; 0: not measured
  std::int64_t cores = 0;   // most cores that may compute; 0: the device reads the host's copy in place, at no cost
  // Seconds to copy a token's activations to the host and the answers back, in all layers. No product is beside this.
  double per_token = 0;
  std::array<Group, kGroupNames.size()> groups;  // as kGroupNames

  bool measured() const { return layers > 0; }
  friend bool operator==(const CpuAssist& a, const CpuAssist& b);
};

// Rows of a step that use one adapter which is on its way. Its layers arrive evenly between two times, in seconds from
// the begin of the step; both may be negative.
struct AssistedRows {
  std::int64_t tokens = 0, rank = 0;
  double arrival_begins = 0, arrival_ends = 0;
};

// The number of tokens whose part one core computes in the time of the device's products beside it, in a step that only
// reads the weights: CaraServe's c. At least 1. REQUIRES: measured.
std::int64_t TokensPerCore(const PerformanceModel& model, std::int64_t rank);
// Cores for so many rows: ceil(tokens / TokensPerCore), at most CpuAssist::cores, at least 1.
std::int64_t AssistCores(const PerformanceModel& model, std::int64_t tokens, std::int64_t rank);

// Seconds by which all layers of a step take longer if the host computes all of these rows: for each group, the copies,
// and what the host takes longer than the products beside it. The rows share the cores. 0 if not measured.
double AssistSeconds(const PerformanceModel& model, const StepLoad& load, std::span<const AssistedRows> rows);
// Seconds of a step that begins while these rows' adapters are arriving. A layer runs on the host for those of which it
// has not arrived yet when the step comes to it. `on_device`: seconds of the step with all adapters on the device. The
// device's work is not reduced by what the host takes over, so the result is not below `on_device`.
double AssistedStepSeconds(const PerformanceModel& model, const StepLoad& load, double on_device,
                           std::span<const AssistedRows> rows);

}  // namespace loramux
