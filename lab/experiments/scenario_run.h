// Runs a workload on the real engine: real threads, transfers and clock. The first run has ample memory; it gives the
// answers, the working set's size and the machine's capacity. Then follow the cells, with every answer compared.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "lab/experiments/scenario_workload.h"
#include "memory/page_geometry.h"
#include "runtime/runtime.h"
#include "workload/statistics.h"

namespace loramux {

// A request with known prompt and answer, as every turn before it has been answered once.
struct PlannedRequest {
  TimeNs due = 0;           // since the start of the run
  std::size_t adapter = 0;  // index
  std::vector<TokenId> prompt, answer;
};

// Location of the model and the adapters, and the setup of the engine common to all runs.
struct ScenarioHouse {
  std::filesystem::path model;
  std::vector<std::filesystem::path> adapters;
  int threads = 0;  // threads of the executor; 0: one per processor
};

// The sizes that a simulator needs.
struct HouseSizes {
  PageGeometry geometry;
  std::vector<std::int64_t> ranks, pages, bytes;  // by adapter; bytes: moved by a transfer, less than the pages hold
};

// Results of the run with ample memory.
struct Reference {
  std::vector<PlannedRequest> requests;  // ascending by due
  std::int64_t working_set_bytes = 0;    // all requested adapters and all distinct pages of keys and values
  std::int64_t adapter_bytes = 0;        // the adapters' part of it
  double capacity = 0;                   // as MeasureCapacity's
  HouseSizes sizes;
};

// Requests per second that this machine answers with ample memory and 16 concurrent sessions.
Result<double> MeasureCapacity(const ScenarioHouse& house, const std::vector<Session>& sessions);

// Runs every session once with ample memory, without and with cache. Errors: the answers differ; errors of
// Runtime::Load and of the registry.
Result<Reference> RunReference(const ScenarioHouse& house, const std::vector<Session>& sessions);

// Bytes of the device's pages at one time, by use.
struct MemorySample {
  double seconds = 0;
  std::int64_t running_kv = 0, history = 0, invalid_history = 0, adapters = 0, free = 0;
};

// Options of one cell.
struct CellOptions {
  std::string regime;
  std::int64_t device_bytes = 0, host_bytes = 0;
  double seconds = 7, warm_up_seconds = 1.75;  // latencies and counters cover arrivals after the warm-up
};

// Results of one cell.
struct CellResult {
  std::int64_t requests = 0;  // measured
  Summary ttft_ms, tpot_ms;   // from due; TPOT of answers with at least two tokens
  // geometric means; two runs with the same arrivals are compared request by request
  double ttft_geometric_ms = 0, tpot_geometric_ms = 0;
  double hit_device = 0, hit_host = 0;                  // shares of the prompts' tokens
  double adapter_hit_device = 0, adapter_hit_host = 0;  // shares of the requests, at their arrival
  std::int64_t adapters_disk_to_host = 0, adapters_disk_to_device = 0, adapters_host_to_device = 0;  // bytes
  double adapter_load_ms = 0;                                 // mean, from the decision to residency
  std::int64_t kv_device_to_host = 0, kv_host_to_device = 0;  // bytes
  double invalid_history = 0;                                 // share of the history on the device, mean over time
  MemorySample mean_memory;                                   // from the end of the warm-up to the last answer
  std::int64_t preemptions = 0;
  std::int64_t wrong_answers = 0, failed = 0;  // all requests, including the warm-up
  double drain_seconds = 0;                    // from the last arrival to the last answer
  double worst_lag_ms = 0;                     // how much later than due this program sent a request, at worst
  std::vector<MemorySample> memory;            // every 50 ms, from the start of the run
};

// 0 if there are no values. REQUIRES: all values are positive.
double GeometricMean(const std::vector<double>& values);

// Runs one cell. Errors: those of Runtime::Load; a request that the engine refuses (too little memory).
Result<CellResult> RunCell(const ScenarioHouse& house, const std::vector<PlannedRequest>& requests,
                           const CellOptions& options);

}  // namespace loramux
