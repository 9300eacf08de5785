// How many accelerators a load needs, and with which preset: an operator's question. Servers of several accelerators
// each (tensor parallelism) stand beside servers of one (replicas); what counts is how many accelerators there are.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "simulate/fleet.h"
#include "simulate/fleet_summary.h"
#include "simulate/objective.h"

namespace loramux {

// One way to serve.
struct MachineChoice {
  Preset preset;
  std::int64_t gpus = 1;   // GPUs of each server
  SimulatedDevice device;  // as many GPUs as one device
};

// How well a count is known.
enum class MachineKnowledge : std::uint8_t {
  kExact,      // so many servers keep the objective, and one less does not
  kMoreThan,   // so many do not
  kEstimated,  // one server with its part of the requests needs so many beside it; the whole fleet was not simulated
  kTooMany,    // the most that may be tried do not suffice
};

// What a way to serve needs.
struct MachineCount {
  MachineChoice choice;
  MachineKnowledge known = MachineKnowledge::kEstimated;
  std::int64_t servers = 0;
  std::vector<FleetSize::Probe> probes;  // probes of whole fleets, ascending by servers
  std::optional<FleetResult> result;     // run of the fleet with `servers`; only with kExact
  FleetSummary summary;                  // figures of that run

  std::int64_t Gpus() const { return servers * choice.gpus; }
};

// How to search.
struct MachineSearch {
  ServiceObjective objective;
  double share = 0.99;       // share of the requests that must keep it
  std::int64_t most = 1000;  // most servers
  // The events for a number of servers; may be empty.
  std::function<Result<std::vector<FleetEvent>>(std::int64_t servers)> faults;
  // What is done now, and the share of the work that is done, an estimate; may be empty.
  std::function<void(const std::string& what, double share)> progress;
};

// "loramux", or "loramux x2" on two GPUs.
std::string NameOf(const MachineChoice& choice);

// Each n-th session of a workload, n >= 1: what one of n servers gets.
Workload EveryNthSession(const Workload& workload, std::int64_t n);

// Compares ways to serve, the cheapest first in the result. One server with its part of the requests is simulated for
// each, which gives an estimate; then whole fleets, near the estimates. A way that is estimated to need a quarter more
// accelerators than the cheapest keeps its estimate; another one is tried with as many accelerators as the cheapest
// needs. `fleet` gives what does not depend on the way. Errors: those of Simulate, SimulateFleet and `faults`.
// REQUIRES: a choice.
Result<std::vector<MachineCount>> FindMachines(const std::vector<MachineChoice>& choices, const FleetOptions& fleet,
                                               const Workload& workload, const MachineSearch& search);

// "This trace needs 6 of A40 48 GB with preset loramux." `load` and `device` in words. REQUIRES: a count.
std::string MachineAnswer(const std::vector<MachineCount>& counts, const std::string& load, const std::string& device,
                          std::int64_t most);

}  // namespace loramux
