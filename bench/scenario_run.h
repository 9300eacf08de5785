// Runs a workload on the real engine: real threads, transfers and clock. First with ample memory, which says what the
// answers are, how large the working set is and what the machine can do; then cell by cell, with every answer compared.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "bench/scenario_workload.h"
#include "engine/runtime.h"
#include "memory/page_geometry.h"
#include "tools/bench/statistics.h"

namespace loramux {

// A request whose prompt and answer are known, since every turn before it has been answered once.
struct PlannedRequest {
  TimeNs due = 0;           // since the start of the run
  std::size_t adapter = 0;  // index
  std::vector<TokenId> prompt, answer;
};

// Where models and adapters are, and how the engine is set up in all runs.
struct ScenarioHouse {
  std::filesystem::path model;
  std::vector<std::filesystem::path> adapters;
  int threads = 0;  // of the executor; 0: one per processor
};

// What a simulator has to know of a house.
struct HouseSizes {
  PageGeometry geometry;
  std::vector<std::int64_t> ranks, pages, bytes;  // by adapter; bytes: what is moved, less than its pages hold
};

struct Reference {
  std::vector<PlannedRequest> requests;  // ascending by due
  std::int64_t working_set_bytes = 0;    // all adapters that were asked and all different pages of keys and values
  std::int64_t adapter_bytes = 0;        // of those, the adapters'
  double capacity = 0;                   // as MeasureCapacity's
  HouseSizes sizes;
};

// Requests a second that this machine answers with ample memory, 16 sessions at once.
Result<double> MeasureCapacity(const ScenarioHouse& house, const std::vector<Session>& sessions);

// Every session once with ample memory, without and with cache; the answers of both must agree. Errors: they do not, or
// what Runtime::Load and the registry refuse.
Result<Reference> RunReference(const ScenarioHouse& house, const std::vector<Session>& sessions);

// Bytes of the device's pages at one time, by use.
struct MemorySample {
  double seconds = 0;
  std::int64_t running_kv = 0, history = 0, invalid_history = 0, adapters = 0, free = 0;
};

struct CellOptions {
  std::string regime;
  std::int64_t device_bytes = 0, host_bytes = 0;
  double seconds = 7, warm_up_seconds = 1.75;  // latencies and counters are of what arrives after the latter
};

struct CellResult {
  std::int64_t requests = 0;       // measured
  load::Summary ttft_ms, tpot_ms;  // from due; TPOT of answers with at least two tokens
  // geometric means: of two runs of the same arrivals, compare request by request
  double ttft_geometric_ms = 0, tpot_geometric_ms = 0;
  double hit_device = 0, hit_host = 0;                  // shares of the prompts' tokens
  double adapter_hit_device = 0, adapter_hit_host = 0;  // shares of the requests, as they came in
  std::int64_t adapters_disk_to_host = 0, adapters_disk_to_device = 0, adapters_host_to_device = 0;  // bytes
  double adapter_load_ms = 0;                                 // from the decision to its readiness, mean
  std::int64_t kv_device_to_host = 0, kv_host_to_device = 0;  // bytes
  double invalid_history = 0;                                 // share of the history on the device, mean over time
  MemorySample mean_memory;                                   // after the warm-up, until the last answer
  std::int64_t preemptions = 0;
  std::int64_t wrong_answers = 0, failed = 0;  // of all requests, those of the warm-up too
  double drain_seconds = 0;                    // from the last arrival to the last answer
  double worst_lag_ms = 0;                     // of this program: sent after due
  std::vector<MemorySample> memory;            // every 50 ms, from the start of the run
};

// 0 without any. REQUIRES: all are positive.
double GeometricMean(const std::vector<double>& values);

// Errors: what Runtime::Load refuses, a request that the engine does not take (too little memory).
Result<CellResult> RunCell(const ScenarioHouse& house, const std::vector<PlannedRequest>& requests,
                           const CellOptions& options);

}  // namespace loramux
