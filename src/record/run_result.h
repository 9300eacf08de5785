// What a run of the engine did, request by request: the outcome of a simulation or a replay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/generation.h"
#include "engine/snapshot.h"
#include "workload/histogram.h"

namespace loramux {

// One request's outcome. Times are in ns on the virtual clock; -1: not yet.
struct RequestRecord {
  TimeNs arrival = -1, first_scheduled = -1, first_token = -1, last_token = -1;
  std::int32_t adapter = -1, prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;
  // the part of the time before first_scheduled in which the adapter was being loaded to the device
  TimeNs adapter_load = 0;
  // larger than the memory or the model's length: never queued; or a later turn that was never asked
  bool refused = false;
  bool cancelled = false;  // by its client, before its end

  bool Ended() const { return !refused && !cancelled; }  // completed in full
  // Durations in ns. REQUIRES: the request ended.
  TimeNs Ttft() const { return first_token - arrival; }
  TimeNs EndToEnd() const { return last_token - arrival; }
};

// The content of memory and queue at one time.
struct WorldSample {
  TimeNs at = 0;
  std::int64_t running = 0, waiting = 0;
  std::int64_t free_pages = 0, running_kv_pages = 0, history_pages = 0, adapter_pages = 0;  // pages of the device
  std::int64_t idle_adapter_pages = 0;  // the part of adapter_pages that no running request uses
  std::int64_t steps = 0;               // since the start
};

// Outcome of a run: of a simulation or a replay.
struct RunResult {
  std::vector<RequestRecord> requests;                        // in the order of the workload
  std::vector<std::pair<std::size_t, std::string>> refusals;  // index of each refused request, and the error message
  std::vector<WorldSample> samples;
  EngineStats stats;                 // at the end
  DurationHistogram between_tokens;  // over all requests
  TimeNs end = 0;                    // when the last request ended
  TimeNs busy = 0;                   // total step time of the executor
  double bytes_to_device = 0, bytes_to_host = 0, bytes_from_disk = 0;
  TimeNs host_link_busy = 0;         // in the direction of the device
  bool given_up = false;             // the run was ended early; requests that had not ended count as cancelled
  double invalid_history_share = 0;  // invalid share of the history on the device, mean over samples (FastLibra 6.6)

  // Adds a token, if the event has one, to the record of the request and to `between_tokens`.
  void Hear(std::size_t request, const GenerationEvent& event);
  // Sets `end`.
  void FindEnd();
};

}  // namespace loramux
