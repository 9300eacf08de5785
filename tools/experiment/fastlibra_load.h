// FastLibra's machines and loads, as far as its sections 2.2, 6.1, 6.2 and 6.5 say them; what they leave open is named
// as such where it is set (fastlibra_load.cc). One set of constants for all of its rows.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "tools/experiment/experiment.h"

namespace loramux {

struct FastLibraScenario {
  const char* name;
  double input, output, turns, think_seconds;  // new tokens of a turn and of an answer; means
  double exponent;                             // of Zipf's law over the adapters that are in use
  bool shifts;                                 // other adapters come into use (2.3.2)
};
// Chatbot, translation, personal agents.
std::span<const FastLibraScenario> FastLibraScenarios();

struct FastLibraModel {
  std::string_view model;
  const char* name;
  std::int64_t gpus;
};
std::span<const FastLibraModel> FastLibraModels();

// One column of the document's figures.
struct FastLibraCell {
  std::size_t scenario = 0, model = 0;  // indices of the above
  std::int64_t adapters = 50;
  double memory = 1;   // of what the weights leave
  double lengths = 0;  // in times of its data set's means; 0: kFastLibraLengths
  std::string Name() const;
};

// The document gives no lengths. With its data sets' means, and its table 1, 1.6 requests a second for 13B with 100
// adapters hold a thirtieth of the memory; in its figure 14 all of it, and more than vLLM's part. With lengths so many
// times as long they do (fl-14).
inline constexpr double kFastLibraLengths = 4;
// The document's half hour.
inline constexpr double kFastLibraSeconds = 1800;

// Systems: presets, and what 6.1 makes of the baselines:
//   vllm-waits        `vllm`, but each step waits for the adapters of those who join it, as vLLM's own loop does;
//   adapters take slots of
// the
//                     largest rank
//   s-lora-same-loop  S-LoRA's memory on FastLibra's own loop
Result<SimulationJob> MakeFastLibraCellJob(const ExperimentContext& context, const FastLibraCell& cell,
                                           std::string_view system, double rate);
// Its requests for `rate` a second: half an hour of them, but no more than what simulates in seconds.
std::int64_t FastLibraRequests(const ExperimentContext& context, double rate);

// The rate and the adapters in use change over the run as the document says of its half hour. REQUIRES: workload of
// `job`.
void ShapeFastLibraLoad(const SimulationJob& job, const FastLibraCell& cell, std::string_view system,
                        Workload& workload);

}  // namespace loramux
