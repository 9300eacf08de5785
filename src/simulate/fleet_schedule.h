// What happens to a fleet during a simulation, beside the load: failures, drains, new servers, new content of adapters,
// and popularity that moves on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "workload/workload.h"

namespace loramux {

enum class FleetEventKind : std::uint8_t {
  kCrash,    // its requests are lost, and so is what it had in memory. Back after `duration`, cold
  kFreeze,   // it does nothing for `duration`, and then goes on
  kDrain,    // it takes nothing new, ends when it has finished, and is back `duration` after the begin
  kAdd,      // `count` new servers join
  kReplace,  // `adapter` gets new content: on `server`, or, with server -1, in what routers demand
};

// One event.
struct FleetEvent {
  TimeNs at = 0;
  FleetEventKind kind = FleetEventKind::kCrash;
  std::int32_t server = -1;  // index
  TimeNs duration = 0;       // 0: without an end
  std::int64_t count = 1;    // servers that kAdd adds
  std::int32_t adapter = -1;
};

// Reads events as flags give them, each "KIND@SECONDS" with "+SECONDS" for the duration and ":SERVER" for a server
// (without: drawn by the seed). KIND is crash, freeze, drain or add (":N" is then how many). "crashes@SECONDS+SECONDS":
// each server crashes once in so many seconds on average, up to `last`, and is back after the duration (30 s). Returns
// them in order of time. Errors name --fail.
Result<std::vector<FleetEvent>> ParseFleetEvents(const std::vector<std::string>& texts, std::int64_t servers,
                                                 TimeNs last, std::uint64_t seed);

// Moves popularity: after each `period`, a share of the adapters exchange their requests with others of the same rank,
// drawn by the seed. A session keeps its adapter. REQUIRES: period > 0, 0 <= share <= 1.
void DriftPopularity(Workload& workload, TimeNs period, double share, std::uint64_t seed);

}  // namespace loramux
