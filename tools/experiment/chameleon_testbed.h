// The machines and the workload of Chameleon's evaluation, from what the document says of them. One set of constants
// for all of its rows; each has its place in the document at its definition (chameleon_testbed.cc).
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tools/experiment/experiment.h"

namespace loramux {

// How fast adapters come to the device: under load, as the slowdowns of section 3.2 say (ch-14 compares them); and
// alone, as figures 2 and 14 say: 256 MiB, of rank 128, in 30 ms. The document is not of one mind: experiments use the
// first, and show what the second changes.
inline constexpr double kChameleonLink = 0.9e9, kChameleonQuietLink = 256.0 * (1 << 20) / 0.030;  // bytes per second

// Azure's conversations, each once: what is sustained for a few minutes alone lies above that.
inline constexpr std::int64_t kTraceRequests = 19'366;

struct ChameleonSetting {
  std::string_view preset = "chameleon";
  double rate = 9;  // per second
  std::string_view device = "a40", model = "llama-7b";
  std::int64_t gpus = 1, adapters = 100, requests = kTraceRequests;
  std::function<void(SimulationJob&)> change;  // after all else; null: none
};

// A job on the testbed. Its objective is the document's: five times the mean time of a request at low load, on this
// machine.
// Errors: the trace cannot be read; the model does not fit.
Result<SimulationJob> MakeChameleonJob(const ExperimentContext& context, const ChameleonSetting& setting);
Result<std::vector<SimulationJob>> MakeChameleonJobs(const ExperimentContext& context,
                                                     std::span<const ChameleonSetting> settings);

// Prompts that a step computes together, as S-LoRA bounds them: follows the device's memory.
void LimitPromptsTogether(SimulationJob& job);
// The lanes' age bound follows the objective.
void SetObjective(SimulationJob& job, TimeNs slo);
// The objective by 5.1, for a job whose device or lengths were changed.
Status SetChameleonSlo(SimulationJob& job);

// The load that S-LoRA sustains there: the document's 8.6 RPS. Rows are compared at the document's rates and at these,
// too.
Result<double> SLoraLoad(ExperimentContext& context, ChameleonSetting setting);
// The document's 6, 8 and 9 RPS, of the 8.6 that S-LoRA sustains.
inline constexpr double kLowLoad = 6 / 8.6, kMediumLoad = 8 / 8.6, kHighLoad = 9 / 8.6;
// About what ours of Chameleon sustains (ch-11), and beyond S-LoRA: where memory is short, and orders, lanes and
// predictions decide.
inline constexpr double kOverload = 1.35;

// In words.
std::string DescribeChameleonTestbed(const SimulationJob& job);

// Experiments of the other files.
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

}  // namespace loramux
