// Arrival times of requests: drawn (Poisson) or replayed from recorded traffic. A trace is made before the run, so
// answers cannot change arrivals.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace loramux::load {

// One arrival.
struct Arrival {
  TimeNs at = 0;                     // relative to the start of the run
  std::int64_t input_tokens = 0;     // 0: not in the trace
  std::int64_t output_tokens = 0;    // 0: not in the trace
  int client = -1;                   // the client that sent it, 0 is the busiest; -1: not in the trace
  std::vector<std::int64_t> blocks;  // content ids of the prompt's blocks; equal ids mean equal text
};

// The arrivals of a run.
struct Trace {
  std::vector<Arrival> arrivals;  // ascending by `at`
  int clients = 0;                // 0: unknown
  std::int64_t block_tokens = 0;  // tokens of each block of Arrival::blocks except the last
};

// Ends a run at whichever limit is reached first. 0: no limit.
struct TraceLimits {
  double duration_s = 0;
  std::int64_t requests = 0;
};

// Draws Poisson arrivals with a mean of `rate` per second. REQUIRES: rate > 0, one of the limits is set.
Trace PoissonTrace(double rate, const TraceLimits& limits, std::uint64_t seed);

// Parses the Azure LLM inference trace: lines TIMESTAMP,ContextTokens,GeneratedTokens after a header line. Errors name
// the line.
Result<Trace> ParseAzureTrace(std::string_view text, const std::string& name);

// Parses the Mooncake trace: JSON lines {"timestamp" in ms, "input_length", "output_length", "hash_ids"}.
Result<Trace> ParseMooncakeTrace(std::string_view text, const std::string& name);

// One window of a client of a ServeGen trace: from start_s on, its rate and the distribution of its intervals.
struct ClientWindow {
  double start_s = 0;
  double rate = 0;  // requests per second; 0: silent
  bool weibull = false;
  double shape = 1;
};
// Parses the windows of one client.
Result<std::vector<ClientWindow>> ParseClientWindows(std::string_view text, const std::string& name);

// How to draw arrivals from ServeGen clients. Drawing begins at `start_s` of the trace. With rate > 0 all rates are
// scaled by one factor, so that they sum to `rate` in the first window. Limits are in the trace's own time. REQUIRES:
// one of the limits is set.
struct ClientTraceOptions {
  double start_s = 0;
  double rate = 0;
  TraceLimits limits;
  std::uint64_t seed = 0;
};
// Draws arrivals from every client's distributions, window by window.
Result<Trace> DrawClientTrace(std::vector<std::vector<ClientWindow>> clients, const ClientTraceOptions& options);

// Loads a trace. The kind follows from `path`: a folder is ServeGen (one *.csv per client), *.jsonl is Mooncake,
// anything else is Azure. Recorded requests before start_s are skipped, and `rate` > 0 stretches time so that it is the
// mean rate.
Result<Trace> LoadTrace(const std::string& path, const ClientTraceOptions& options);

// Multiplies times (0.1: ten times as fast) and token counts, then cuts the trace at the limits.
void ScaleTrace(Trace& trace, double time_scale, double length_scale, const TraceLimits& limits);

}  // namespace loramux::load
