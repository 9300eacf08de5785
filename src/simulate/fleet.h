// A fleet on one virtual clock: servers as in simulation.h behind routers, each of which is the router's own object
// (cluster::Dispatcher). What is modelled is only the network: how late and how often routers hear of servers, and how
// a server fails. Deterministic: the same options and workload give the same result.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "cluster/dispatcher.h"
#include "record/run_result.h"
#include "simulate/fleet_schedule.h"
#include "simulate/simulation.h"
#include "workload/workload.h"

namespace loramux {

// Options of SimulateFleet.
struct FleetOptions {
  // options of each server, without `observer`, `samples`, `progress` and `check_every`. `give_up` is for the fleet
  SimulationOptions server;
  std::int64_t servers = 1;        // at the start, named "server-0" and so on
  std::int64_t routers = 1;        // requests are dealt to them in turn
  DispatcherOptions dispatcher;    // for each router; model null: the servers' own; the seed is the first router's
  std::int64_t most_attempts = 3;  // at servers, for a request that none began

  TimeNs snapshot_interval = 100 * kNsPerMs;  // 0: at each decision, routers know the servers' present state
  TimeNs snapshot_delay = 5 * kNsPerMs;       // from a server's state to the router that hears of it
  double snapshot_jitter = 0;                 // each delay is longer by a share of up to this
  double snapshot_loss = 0;                   // share of snapshots that never arrive
  TimeNs probe_interval = kNsPerSecond;       // time between health probes; a frozen server fails one after as long
  TimeNs drain_notice = kNsPerSecond;         // how long a draining server still takes requests

  std::vector<FleetEvent> events;  // ascending by time
  std::uint64_t seed = 1;          // seed of jitter and loss
  bool keep_log = false;
  std::function<void(double share)> progress;  // told the share of requests that have ended; may be empty
};

// How a request ended.
enum class FleetEnd : std::uint8_t {
  kNeverAsked,  // a later turn of a session that ended early
  kFinished,    // answered in full
  kRefused,     // by the server: larger than its memory
  kCancelled,   // by the client
  kBroken,      // its server died
  kNotServed,   // no server took it
};
const char* FleetEndName(FleetEnd end);

// What became of a request, beside its RequestRecord.
struct FleetRequest {
  FleetEnd end = FleetEnd::kNeverAsked;
  std::int32_t router = -1, server = -1;  // server: the last one that was tried
  std::int32_t attempts = 0;
  bool cold = false;  // its adapter was not on the server's device when it came there
};

// What a server did, over all its lives.
struct FleetServerTotals {
  std::int64_t sent = 0, finished = 0, broken = 0, cold = 0;
  std::int64_t output_tokens = 0, device_loads = 0, disk_loads = 0, preemptions = 0;
  std::int64_t starts = 0;
  TimeNs busy = 0;  // time that its device computed
  double bytes_to_device = 0, bytes_from_disk = 0;
};

// One line of the fleet's log, for a checker. Servers and clients write it, never a router.
struct FleetLogEntry {
  enum class What : std::uint8_t {
    kAsked,     // a client asks; `digest`: what it must be answered with, or empty
    kAccepted,  // a server takes the request and will execute it, with the adapter of this digest
    kEnded,     // a server has executed it to its end
    kStopped,   // a server stopped executing it: it was cancelled, or the server died
    kTold,      // the client was told of the end, good or bad
  };
  TimeNs at = 0;
  What what = What::kAsked;
  std::size_t request = 0;
  std::int32_t server = -1;
  std::int64_t life = 0;                 // which start of the server it is
  FleetEnd end = FleetEnd::kNeverAsked;  // only of kTold
  std::string digest;
};

// The fleet at one time.
struct FleetSample {
  TimeNs at = 0;
  std::int64_t servers = 0;                                 // servers that are up
  std::int64_t running = 0, waiting = 0, most_waiting = 0;  // most_waiting: at one server
};

// Outcome of a run.
struct FleetResult {
  RunResult run;  // requests in the order of the workload; of the rest only `between_tokens`, `end`
  std::vector<FleetRequest> requests;  // in the order of the workload
  std::vector<FleetServerTotals> servers;
  std::int64_t retries = 0;
  std::vector<FleetSample> samples;
  // What each router knows at the end.
  std::vector<std::vector<Dispatcher::ServerState>> routers;
  std::vector<FleetLogEntry> log;  // only with keep_log
};

// Runs the workload to its end. Errors: those of Simulate; an unknown policy; an event of a server that does not exist.
Result<FleetResult> SimulateFleet(const FleetOptions& options, const Workload& workload);

}  // namespace loramux
