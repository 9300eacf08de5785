// The documents' workloads, for a comparison of any presets on all of them (ours.cc).
#pragma once

#include <string_view>

#include "tools/experiment/experiment.h"

namespace loramux {

// Each on its document's device, at a rate that is a first guess; the objective is the caller's to set. Errors: as
// MakeWorkload's, and an unknown preset.
enum class FastLibraLoad : std::uint8_t { kChatbot, kTranslation, kAgent };
Result<SimulationJob> MakeFastLibraJob(const ExperimentContext& context, FastLibraLoad load, std::string_view preset);
Result<SimulationJob> MakeVllmLoraJob(const ExperimentContext& context, std::string_view preset);
// Arrivals: Poisson and uniform over the adapters, or those of recorded clients.
Result<SimulationJob> MakeCaraServeJob(const ExperimentContext& context, std::string_view preset, bool recorded);

std::span<const Experiment> OurExperiments();

}  // namespace loramux
