// Arrivals of the clients of a ServeGen recording: windows of ten minutes with a rate and a distribution of gaps. Two
// ways to draw from them: in the recording's own scale, for simulations; or as a stationary process at a chosen rate,
// for load that begins at any moment.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/prng.h"
#include "base/result.h"
#include "workload/trace.h"

namespace loramux {

// The behaviour of one client in one time window: the gaps between its requests are independent draws.
struct ClientWindow {
  enum class Gaps : std::uint8_t { kNone, kGamma, kWeibull };  // kNone: the recording has no distribution
  double start_seconds = 0, rate = 0;                          // requests per second; 0: silent
  Gaps gaps = Gaps::kNone;
  double shape = 1, scale = 0;  // parameters of the gaps' distribution; scale in seconds
};
// Length of a window.
inline constexpr double kClientWindowSeconds = 600;

// Parses the windows of one client: lines start, rate, cv, pattern (Gamma, Weibull or empty), shape, scale. Errors name
// the line.
Result<std::vector<ClientWindow>> ParseClientWindows(std::string_view text, const std::string& name);

// Reads one *.csv per client from the folder; the busiest client is the first. Errors name file and line.
Result<std::vector<std::vector<ClientWindow>>> ReadClients(const std::string& folder);

// One drawn arrival.
struct ClientArrival {
  TimeNs at = 0;
  std::int32_t client = 0;  // index of the client
};
// Draws the clients' first `count` requests from `start_seconds` on (fewer if the trace ends), ordered by time since
// then; each window begins with a gap. Gaps are stretched so that the first hour has about `rate` requests per second;
// 0: as recorded. REQUIRES: at least one client; all clients have the same windows.
std::vector<ClientArrival> DrawClientArrivals(const std::vector<std::vector<ClientWindow>>& clients,
                                              double start_seconds, double rate, std::size_t count, Prng& prng);

// Draws stationary arrivals by rate and shape, window by window; windows may differ between clients. With a rate, all
// rates are scaled by one factor, so that they sum to it in the first window. Each client has a generator of its own,
// and each window begins at a random moment of a gap. REQUIRES: one of the limits is set. Error: no client is active.
Result<Trace> DrawClientTrace(std::vector<std::vector<ClientWindow>> clients, const TraceOptions& options);

// Loads a trace for a load generator: a folder is ServeGen's (DrawClientTrace), any other file see ReadTrace. Recorded
// requests before start_s are skipped, and `rate` > 0 stretches time so that it is the mean rate.
Result<Trace> LoadTrace(const std::string& path, const TraceOptions& options);

}  // namespace loramux
