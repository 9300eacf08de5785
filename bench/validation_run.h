// One workload on the real engine and on the simulated one, set up alike.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/snapshot.h"
#include "memory/page_geometry.h"
#include "schedule/pace.h"
#include "schedule/performance_profile.h"
#include "schedule/presets.h"
#include "simulate/workload.h"
#include "tools/profile/engine_session.h"
#include "tools/profile/measure.h"

namespace loramux {

// What all runs have in common.
struct ValidationHouse {
  std::filesystem::path model;
  std::vector<std::string> adapters;  // directories
  std::vector<std::int64_t> ranks;    // of them; all change the same layers
  std::int64_t device_bytes = 0, host_bytes = 0;
  std::int64_t max_running = 64, max_model_len = 1024;
  TimeNs slo = 5 * kNsPerSecond;                  // SizeLanesOptions::slo
  int threads = 1;                                // of the executor
  std::shared_ptr<const PerformanceModel> costs;  // what real and simulated plans go by; null: what they learn
};

// A server of the house, as `loramux serve --preset NAME` is set up.
RuntimeOptions OptionsOf(const ValidationHouse& house, const Preset& preset);
Result<std::unique_ptr<EngineSession>> StartEngine(const ValidationHouse& house, const Preset& preset);

struct RealRun {
  EngineRun run;
  EngineStats stats;
  // As the simulator needs them: of an adapter, and of the pool.
  PageGeometry geometry;
  std::int64_t device_pages = 0, bytes_per_rank = 0;
  std::vector<std::int64_t> adapter_pages;
};

// On an engine of its own. Errors: EngineSession's; adapters whose bytes are not in proportion to their ranks.
Result<RealRun> RunReal(const ValidationHouse& house, const Preset& preset, const std::vector<EngineRequest>& requests);

struct SimulatedRun {
  std::vector<ServedRequest> requests;
  EngineStats stats;
};

// The same requests, sent at the very times of `real`, on the same memory, on a machine as the profile says.
Result<SimulatedRun> RunSimulated(const ValidationHouse& house, const Preset& preset,
                                  const std::vector<EngineRequest>& requests, const RealRun& real,
                                  const PerformanceProfile& profile);

// A run is looked at in turns of a quarter of a second: what one model is fitted to in every other one is judged in
// those between, and the other way round. So no model sees the steps that it is held against, and a machine that gets
// slower does so for both. Long enough for most requests to be served in theirs.
inline constexpr TimeNs kTurn = kNsPerSecond / 4;
inline std::size_t TurnOf(TimeNs at) { return static_cast<std::size_t>(at / kTurn % 2); }

// The steps by the turn in which they began; each part has all requests. Empty parts: the run was too short.
std::array<EngineRun, 2> StepsByTurns(const EngineRun& run);
// How fast the machine was in all of the run, by the models of both turns: what no simulator can know.
Pace OwnPaceOf(const std::array<EngineRun, 2>& by_turn, const std::array<PerformanceProfile, 2>& profiles);
// Of each request what the simulation of its turn says, by when it was sent. REQUIRES: as many requests in both.
SimulatedRun ByTurns(const std::array<SimulatedRun, 2>& simulated);

// The requests for the simulator. `sent` are the times at which the real engine was given them.
// REQUIRES: as many as requests, ascending.
Workload AsWorkload(const std::vector<EngineRequest>& requests, const std::vector<TimeNs>& sent,
                    const std::vector<std::int64_t>& adapter_ranks);

// The steps as CSV, of each what the model of its turn says.
std::string StepsAsCsv(const std::array<EngineRun, 2>& by_turn, const std::array<PerformanceProfile, 2>& profiles);
// The transfers as CSV; `kind` counts TransferKind.
std::string TransfersAsCsv(const EngineRun& run);
// The requests as CSV, really served and simulated; ns since the start.
std::string RequestsAsCsv(const std::vector<EngineRequest>& requests, const EngineRun& real,
                          const SimulatedRun& simulated);

}  // namespace loramux
