// When requests arrive: drawn (Poisson), or replayed from recorded traffic. A trace is made before the run, so that
// nothing about the answers can move an arrival.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace loramux::load {

struct Arrival {
  TimeNs at = 0;                     // after the start of the run
  std::int64_t input_tokens = 0;     // 0: the trace does not say
  std::int64_t output_tokens = 0;    // 0: the trace does not say
  int client = -1;                   // whose request it was, 0 the busiest; -1: the trace does not say
  std::vector<std::int64_t> blocks;  // content ids of the prompt's blocks; equal ids are equal text
};

struct Trace {
  std::vector<Arrival> arrivals;  // ascending by `at`
  int clients = 0;                // 0: unknown
  std::int64_t block_tokens = 0;  // tokens of each of Arrival::blocks, except the last
};

// Where a run ends; whichever is reached first. 0: no such bound.
struct TraceLimits {
  double duration_s = 0;
  std::int64_t requests = 0;
};

// Arrivals at random with `rate` a second on average. REQUIRES: rate > 0, one of the limits is set.
Trace PoissonTrace(double rate, const TraceLimits& limits, std::uint64_t seed);

// The Azure LLM inference trace: lines TIMESTAMP,ContextTokens,GeneratedTokens after a heading. Errors name the line.
Result<Trace> ParseAzureTrace(std::string_view text, const std::string& name);

// The Mooncake trace: JSON lines {"timestamp" in ms, "input_length", "output_length", "hash_ids"}.
Result<Trace> ParseMooncakeTrace(std::string_view text, const std::string& name);

// One client of a ServeGen trace: its rate over time and the distribution of its intervals.
struct ClientWindow {
  double start_s = 0;
  double rate = 0;  // requests a second; 0: silent
  bool weibull = false;
  double shape = 1;
};
Result<std::vector<ClientWindow>> ParseClientWindows(std::string_view text, const std::string& name);

// A folder of ServeGen clients (*.csv, one each): draws arrivals from every client's distribution, window by window,
// from `start_s` of the trace on. With rate > 0, all rates are scaled by one factor so that they sum to `rate` in the
// first window. Limits are in the trace's own time. REQUIRES: one of the limits is set.
struct ClientTraceOptions {
  double start_s = 0;
  double rate = 0;
  TraceLimits limits;
  std::uint64_t seed = 0;
};
Result<Trace> DrawClientTrace(std::vector<std::vector<ClientWindow>> clients, const ClientTraceOptions& options);

// Any of the above by what `path` is: a folder (ServeGen), *.jsonl (Mooncake), otherwise Azure. Recorded requests
// before start_s are skipped, and `rate` > 0 stretches time so that it is the average.
Result<Trace> LoadTrace(const std::string& path, const ClientTraceOptions& options);

// Multiplies times (0.1: ten times as fast) and token counts, then cuts at the limits.
void ScaleTrace(Trace& trace, double time_scale, double length_scale, const TraceLimits& limits);

}  // namespace loramux::load
