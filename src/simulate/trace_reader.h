// Recorded requests: Azure's and Mooncake's traces, and the arrival processes of ServeGen's clients.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/prng.h"
#include "base/result.h"

namespace loramux {

// One recorded request.
struct TraceRequest {
  TimeNs arrival = 0;                                // since the first one
  std::int32_t input_tokens = 0, output_tokens = 0;  // at least 1
  // ids of the contents of the prompt's blocks; an id also identifies all blocks before it. Empty: not known
  std::vector<std::int32_t> blocks;
};
inline constexpr std::int32_t kTraceBlockTokens = 512;  // Mooncake's block size

// Reads a trace, in order of arrival. The name decides the format: *.jsonl is Mooncake's (one object per line:
// timestamp in ms, input_length, output_length, hash_ids); any other is CSV as Azure's (a header; then time, input
// tokens, output tokens). Errors name file and line.
Result<std::vector<TraceRequest>> ReadTrace(const std::filesystem::path& path);

// The behaviour of one ServeGen client in one time window: the gaps between its requests are independent draws.
struct ClientWindow {
  enum class Gaps : std::uint8_t { kNone, kGamma, kWeibull };
  double start_seconds = 0, rate = 0;  // requests per second
  Gaps gaps = Gaps::kNone;
  double shape = 0, scale = 0;  // of the gaps, in seconds
};
// Length of a window.
inline constexpr double kClientWindowSeconds = 600;

// The windows of each client, busiest client first; all clients have the same windows. Reads chunk-*-trace.csv of the
// directory. Errors name file and line.
Result<std::vector<std::vector<ClientWindow>>> ReadClients(const std::filesystem::path& directory);

// One drawn arrival.
struct ClientArrival {
  TimeNs at = 0;
  std::int32_t client = 0;  // index of the client
};
// Draws the clients' first `count` requests from `start_seconds` on (fewer if the trace ends), ordered by time since
// then. Gaps are stretched so that the first hour has about `rate` requests per second; 0: as recorded.
std::vector<ClientArrival> DrawClientArrivals(const std::vector<std::vector<ClientWindow>>& clients,
                                              double start_seconds, double rate, std::size_t count, Prng& prng);

}  // namespace loramux
