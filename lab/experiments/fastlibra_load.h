// FastLibra's machines and loads, as far as sections 2.2, 6.1, 6.2 and 6.5 describe them. Assumptions beyond the paper
// are marked where they are made (fastlibra_load.cc). All FastLibra experiments use one set of constants.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "lab/experiments/experiment.h"

namespace loramux {

// One of the paper's three scenarios.
struct FastLibraScenario {
  const char* name;
  // means: new tokens of a turn and of an answer, turns, pause between turns
  double input, output, turns, think_seconds;
  double exponent;  // exponent of Zipf's law over the adapters in use
  bool shifts;      // the set of adapters in use changes over the run (2.3.2)
};
// Returns chatbot, translation and personal agents.
std::span<const FastLibraScenario> FastLibraScenarios();

// One of the paper's models.
struct FastLibraModel {
  std::string_view model;
  const char* name;
  std::int64_t gpus;
};
std::span<const FastLibraModel> FastLibraModels();

// One column of the paper's figures.
struct FastLibraCell {
  std::size_t scenario = 0, model = 0;  // indices into FastLibraScenarios() and FastLibraModels()
  std::int64_t adapters = 50;
  double memory = 1;   // share of the memory that the weights leave
  double lengths = 1;  // factor for the data set's mean lengths
  // A name for tables.
  std::string Name() const;
};

// What a copy between the tiers costs besides its bytes. The paper's pool has blocks of one size: 32 tokens of keys or
// of values in a layer (2.2), or as much of an adapter, cut along its rank (4.3); each block is a copy of its own. One
// costs 5 to 7 us to start (cudaMemcpyAsync, measured in DualPath, arXiv 2602.21548, section 5.2).
inline constexpr std::int64_t kFastLibraBlockTokens = 32;  // every system has such pages here
inline constexpr double kFastLibraCopySeconds = 6e-6;
// The half hour of the paper's runs.
inline constexpr double kFastLibraSeconds = 1800;

// Makes a job for a system at a rate (requests per second). A system is a preset, or one of the baselines as section
// 6.1 describes them:
//   - vllm-waits: `vllm`, but each step waits for the adapters of the requests that join it, as vLLM's own loop does;
//     adapters take slots of the largest rank.
//   - s-lora-same-loop: S-LoRA's memory management on FastLibra's loop.
Result<SimulationJob> MakeFastLibraCellJob(const ExperimentContext& context, const FastLibraCell& cell,
                                           std::string_view system, double rate);
// Returns the number of requests for `rate` conversations per second: half an hour of them, bounded so that a
// simulation takes seconds. But at any rate and any scale new ones arrive for twice as long as one takes: in a shorter
// run all would begin before the first ends, and no rate would be too high.
std::int64_t FastLibraRequests(const ExperimentContext& context, double rate, const FastLibraScenario& scenario);

// Changes the rate and the adapters in use over the run, as the paper describes for its half hour. REQUIRES: `workload`
// is the workload of `job`.
void ShapeFastLibraLoad(const SimulationJob& job, const FastLibraCell& cell, std::string_view system,
                        Workload& workload);

}  // namespace loramux
