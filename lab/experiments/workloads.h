// The papers' workloads, for a comparison of any presets on all of them (ours.cc).
#pragma once

#include <string_view>

#include "lab/experiments/experiment.h"

namespace loramux {

// Each Make function returns a job on its paper's device, at a rate that is a first guess; the caller sets the
// objective. Errors: those of MakeWorkload, and an unknown preset.
enum class FastLibraLoad : std::uint8_t { kChatbot, kTranslation, kAgent };
Result<SimulationJob> MakeFastLibraJob(const ExperimentContext& context, FastLibraLoad load, std::string_view preset);
Result<SimulationJob> MakeVllmLoraJob(const ExperimentContext& context, std::string_view preset);
// `recorded`: arrivals and adapters of recorded clients. Otherwise Poisson arrivals, uniform over the adapters.
Result<SimulationJob> MakeCaraServeJob(const ExperimentContext& context, std::string_view preset, bool recorded);

std::span<const Experiment> OurExperiments();

}  // namespace loramux
