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

struct TraceRequest {
  TimeNs arrival = 0;                                // since the first one
  std::int32_t input_tokens = 0, output_tokens = 0;  // at least 1
  // ids of what its prompt's blocks hold, each standing for all before it too; empty: not known
  std::vector<std::int32_t> blocks;
};
inline constexpr std::int32_t kTraceBlockTokens = 512;  // Mooncake's

// By the file's name: *.jsonl is Mooncake's (an object a line: timestamp in ms, input_length, output_length, hash_ids),
// else a CSV file as Azure's (a header; time, input tokens, output tokens). In order of arrival. Errors name file and
// line.
Result<std::vector<TraceRequest>> ReadTrace(const std::filesystem::path& path);

// What one client of ServeGen does in one window of time: gaps between its requests, independent of each other.
struct ClientWindow {
  enum class Gaps : std::uint8_t { kNone, kGamma, kWeibull };
  double start_seconds = 0, rate = 0;  // per second
  Gaps gaps = Gaps::kNone;
  double shape = 0, scale = 0;  // of the gaps, in seconds
};
inline constexpr double kClientWindowSeconds = 600;

// By client, the busiest first; each with the same windows. Reads chunk-*-trace.csv of the directory. Errors name file
// and line.
Result<std::vector<std::vector<ClientWindow>>> ReadClients(const std::filesystem::path& directory);

struct ClientArrival {
  TimeNs at = 0;
  std::int32_t client = 0;  // index
};
// The clients' first `count` requests from `start_seconds` on (fewer where the trace ends), in order of time since
// then. Gaps are stretched so that about `rate` requests come a second in the first hour; 0: as recorded.
std::vector<ClientArrival> DrawClientArrivals(const std::vector<std::vector<ClientWindow>>& clients,
                                              double start_seconds, double rate, std::size_t count, Prng& prng);

}  // namespace loramux
