// Open-loop requests of random tokens: what `loramux profile` runs the engine with, and what the simulator's validation
// sends to the real engine and to the simulated one.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"

namespace loramux {

struct EngineRequest {
  TimeNs due = 0;                  // since the start of the run
  std::size_t adapter = 0;         // index
  std::vector<TokenId> prompt;     // random tokens: no request finds another one's prefix
  std::int32_t output_tokens = 0;  // exactly so many are generated
};

struct EngineLoad {
  double rate = 100, seconds = 4;                      // Poisson arrivals
  std::size_t adapters = 32;                           // 0: the base model alone
  double zipf = 0.8;                                   // exponent of the adapters' popularity
  double input_mean = 96, output_mean = 32, cv = 0.6;  // log-normal
  std::int32_t max_input = 512, max_output = 192;
  std::int64_t vocab = 256;  // tokens are below it
  std::uint64_t seed = 1;
};

// Ascending by due; deterministic in the seed. REQUIRES: rate, seconds and vocab above 0.
std::vector<EngineRequest> DrawRequests(const EngineLoad& load);

}  // namespace loramux
