// Runs one workload on the real engine and on the simulated one, with the same setup.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "costs/pace.h"
#include "costs/performance_profile.h"
#include "engine/snapshot.h"
#include "memory/page_geometry.h"
#include "profile/engine_session.h"
#include "profile/measure.h"
#include "schedule/presets.h"
#include "workload/workload.h"

namespace loramux {

// The setup common to all runs.
struct ValidationHouse {
  std::filesystem::path model;
  std::vector<std::string> adapters;  // directories
  std::vector<std::int64_t> ranks;    // ranks of the adapters; all change the same layers
  std::int64_t device_bytes = 0, host_bytes = 0;
  std::int64_t max_running = 64, max_model_len = 1024;
  TimeNs objective = 5 * kNsPerSecond;            // SystemSpec::objective
  int threads = 1;                                // threads of the executor
  std::shared_ptr<const PerformanceModel> costs;  // used by real and simulated plans; null: learned during the run
};

// Options and engine of a server set up as `loramux serve --preset NAME`.
RuntimeOptions OptionsOf(const ValidationHouse& house, const Preset& preset);
Result<std::unique_ptr<EngineSession>> StartEngine(const ValidationHouse& house, const Preset& preset);

// Results of a run on the real engine.
struct RealRun {
  EngineRun run;
  EngineStats stats;
  // Sizes that the simulator needs: of the adapters and of the pool.
  PageGeometry geometry;
  std::int64_t device_pages = 0, bytes_per_rank = 0;
  std::vector<std::int64_t> adapter_pages;
};

// Runs on a new engine. Errors: those of EngineSession; adapters with bytes that are not proportional to their ranks.
Result<RealRun> RunReal(const ValidationHouse& house, const Preset& preset, const std::vector<EngineRequest>& requests);

// Results of a simulated run.
struct SimulatedRun {
  std::vector<ServedRequest> requests;
  EngineStats stats;
};

// The same requests, sent at the times of `real`, on the same memory, with the profile's machine.
Result<SimulatedRun> RunSimulated(const ValidationHouse& house, const Preset& preset,
                                  const std::vector<EngineRequest>& requests, const RealRun& real,
                                  const PerformanceProfile& profile);

// A run is divided into alternating turns of a quarter of a second. A model fitted to every other turn is judged by
// those between, and vice versa. So no model sees the steps that it is judged by, and a machine that slows down affects
// both. A turn is long enough to serve most of its requests.
inline constexpr TimeNs kTurn = kNsPerSecond / 4;
// The turn, 0 or 1, that the time belongs to.
inline std::size_t TurnOf(TimeNs at) { return static_cast<std::size_t>(at / kTurn % 2); }

// The steps by the turn of their begin; each part has all requests. Empty parts: the run was too short.
std::array<EngineRun, 2> StepsByTurns(const EngineRun& run);
// The machine's pace over the whole run, by the models of both turns: unknown to any simulator.
Pace OwnPaceOf(const std::array<EngineRun, 2>& by_turn, const std::array<PerformanceProfile, 2>& profiles);
// Takes each request from the simulation of its turn, by its time of sending. REQUIRES: the same number of requests in
// both.
SimulatedRun ByTurns(const std::array<SimulatedRun, 2>& simulated);

// The requests for the simulator. `sent`: when each was sent to the real engine. REQUIRES: `sent` has one time per
// request, ascending.
Workload AsWorkload(const std::vector<EngineRequest>& requests, const std::vector<TimeNs>& sent,
                    const std::vector<std::int64_t>& adapter_ranks);

// The steps as CSV, each with the prediction of its turn's model.
std::string StepsAsCsv(const std::array<EngineRun, 2>& by_turn, const std::array<PerformanceProfile, 2>& profiles);
// The transfers as CSV; `kind` is the number of the TransferKind.
std::string TransfersAsCsv(const EngineRun& run);
// The requests as CSV, both real and simulated; times in ns since the start.
std::string RequestsAsCsv(const std::vector<EngineRequest>& requests, const EngineRun& real,
                          const SimulatedRun& simulated);

}  // namespace loramux
