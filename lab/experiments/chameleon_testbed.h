// The machines and the workload of Chameleon's evaluation, from what the paper says about them. All Chameleon
// experiments use one set of constants; each names its place in the paper at its definition (chameleon_testbed.cc).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "lab/experiments/experiment.h"

namespace loramux {

// The paper's rule for lengths (3.2): "a constant factor that results in the peak memory consumption of the scaled-down
// trace to be equal to the memory capacity of our testbed". The trace's own arrivals, as recorded, on S-LoRA. ch-2 has
// the peaks by factor.
inline constexpr double kLengthScale = 0.29;

// The Azure conversation trace, each request once. The load that is sustained for only a few minutes is higher.
inline constexpr std::int64_t kTraceRequests = 19'366;

// One simulation on the testbed.
struct ChameleonSetting {
  std::string_view preset = "chameleon";
  double rate = 9;  // requests per second
  std::string_view device = "a40", model = "llama-7b";
  std::int64_t gpus = 1, adapters = 100, requests = kTraceRequests;
  bool trace_arrivals = false;  // the trace's own times, stretched to `rate` unless that is 0; else Poisson (5.1)
  std::function<void(SimulationJob&)> change;  // applied last; null: none
};

// Makes a job on the testbed. Its objective is the paper's: five times the mean time of a request at low load, on this
// machine. Errors: the trace cannot be read; the model does not fit.
Result<SimulationJob> MakeChameleonJob(const ExperimentContext& context, const ChameleonSetting& setting);
Result<std::vector<SimulationJob>> MakeChameleonJobs(const ExperimentContext& context,
                                                     std::span<const ChameleonSetting> settings);

// The factor by which S-LoRA's kernels for adapters are slower than DescribeDevice assumes (figure 2).
double ChameleonKernelFactor();
// Bounds the prompts that one step computes together, as S-LoRA does. Depends on the device's memory.
void LimitPromptsTogether(SimulationJob& job);
// Sets the objective, and with it the age limit of the lanes.
void SetObjective(SimulationJob& job, TimeNs objective);
// Computes and sets the objective of section 5.1, for a job with a changed device or changed lengths. Given a program,
// S-LoRA takes that program's time beside the device.
Status SetChameleonObjective(SimulationJob& job, std::optional<ProgramCosts> program = std::nullopt);

// Returns the load that S-LoRA sustains in this setting; the paper reports 8.6 requests per second. Experiments compare
// at the paper's rates and at the same shares of this load.
Result<double> SLoraLoad(ExperimentContext& context, ChameleonSetting setting);
// The paper's 6, 8 and 9 requests per second as shares of the 8.6 that S-LoRA sustains.
inline constexpr double kLowLoad = 6 / 8.6, kMediumLoad = 8 / 8.6, kHighLoad = 9 / 8.6;
// About the load that this project's Chameleon sustains (ch-11). Beyond S-LoRA's load memory is short, and queue
// orders, lanes and predictions make the difference.
inline constexpr double kOverload = 1.35;

// Describes the device, the model and the workload of a job.
std::string DescribeChameleonTestbed(const SimulationJob& job);

// Experiments in other files.
Result<ExperimentResult> RunChameleonMotivation(ExperimentContext& context);
Result<ExperimentResult> RunChameleonQueueing(ExperimentContext& context);
Result<ExperimentResult> RunChameleonEviction(ExperimentContext& context);
Result<ExperimentResult> RunChameleonPrefetch(ExperimentContext& context);
Result<ExperimentResult> RunChameleonPredictor(ExperimentContext& context);
Result<ExperimentResult> RunChameleonStaticLanes(ExperimentContext& context);
Result<ExperimentResult> RunChameleonAdapters(ExperimentContext& context);
Result<ExperimentResult> RunChameleonTraces(ExperimentContext& context);
Result<ExperimentResult> RunChameleonModels(ExperimentContext& context);
Result<ExperimentResult> RunChameleonMemory(ExperimentContext& context);
Result<ExperimentResult> RunChameleonParallel(ExperimentContext& context);
Result<ExperimentResult> RunChameleonAssumptions(ExperimentContext& context);
Result<ExperimentResult> RunChameleonRows(ExperimentContext& context);

}  // namespace loramux
