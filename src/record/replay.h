// Replays a recorded run of `loramux serve` on the virtual clock. An engine is configured as the recorded one was, with
// the same scheduler, tree, pools, residency, tiers and predictor. In each step it receives the recorded inputs, and it
// must make the same plans.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "record/recording.h"
#include "record/run_result.h"

namespace loramux {

// Outcome of a replay.
struct ReplayReport {
  std::int64_t steps = 0;                   // replayed
  std::int64_t plans = 0, equal_plans = 0;  // compared plans, and those of them that are the same
  std::string difference;                   // the first difference in words; empty: none. The replay ends there
  bool truncated = false;
  std::optional<RecordingEnd> end;                                 // set for a complete recording
  std::int64_t arrived = 0, ended = 0, cancelled = 0, failed = 0;  // requests
  RunResult run;                                                   // with the recorded times; requests that got a token
};

// `allow_truncated`: accept the recording of a server that was killed, and replay what exists. `check_every`: steps
// between integrity checks; 0: only at the end. Errors: the recording is damaged, truncated (unless allowed), or not
// one that a server writes.
Result<ReplayReport> Replay(RecordingReader& recording, bool allow_truncated = false, std::int64_t check_every = 0);

}  // namespace loramux
