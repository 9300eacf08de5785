// An open loop of requests with random tokens. `loramux profile` runs the engine with it; the validation of the
// simulator sends it to the real engine and to the simulated one.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"

namespace loramux {

// One request of the load.
struct EngineRequest {
  TimeNs due = 0;                  // since the start of the run
  std::size_t adapter = 0;         // index of the adapter
  std::vector<TokenId> prompt;     // random tokens, so that no two requests share a prefix
  std::int32_t output_tokens = 0;  // exactly this many are generated
};

// Parameters of the load.
struct EngineLoad {
  double rate = 100, seconds = 4;                      // requests per second and duration; Poisson arrivals
  std::size_t adapters = 32;                           // 0: the base model alone
  double zipf = 0.8;                                   // Zipf exponent of the adapters' popularity
  double input_mean = 96, output_mean = 32, cv = 0.6;  // log-normal lengths in tokens; cv: coefficient of variation
  std::int32_t max_input = 512, max_output = 192;
  std::int64_t vocab = 256;  // token ids are below it
  std::uint64_t seed = 1;
};

// Draws the requests, ascending by `due`. Deterministic for a seed. REQUIRES: rate, seconds and vocab are positive.
std::vector<EngineRequest> DrawRequests(const EngineLoad& load);

}  // namespace loramux
