// A recorded run of `loramux serve` on the virtual clock: an engine made as the recorded one was, with the same
// scheduler, tree, pools, residency, tiers and predictor, is told in each step what that one was told, and must make
// the same plans.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "engine/recording.h"
#include "simulate/simulation.h"

namespace loramux {

struct ReplayOptions {
  bool allow_truncated = false;  // of a server that was killed: what there is
  std::int64_t check_every = 0;  // steps after which all accounts are compared; 0: at the end alone
};

struct ReplayReport {
  std::int64_t steps = 0;                   // replayed
  std::int64_t plans = 0, equal_plans = 0;  // compared, and the same
  std::string difference;                   // the first one in words; empty: none. Nothing is replayed behind it
  bool truncated = false;
  std::optional<RecordingEnd> end;                                 // of a whole recording
  std::int64_t arrived = 0, ended = 0, cancelled = 0, failed = 0;  // requests
  SimulationResult simulation;                                     // with the recorded times; requests that got a token
};

// Errors: the recording is damaged or truncated, or is none of any server.
Result<ReplayReport> Replay(RecordingReader& recording, const ReplayOptions& options);

}  // namespace loramux
