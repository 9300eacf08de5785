// The flags that say who is served first.
#pragma once

#include <string>

#include "base/result.h"
#include "runtime/runtime.h"
#include "tools/command_line/command_line.h"
#include "tools/constant_flags.h"
#include "tools/system_flags.h"

namespace loramux {

struct ScheduleFlags {
  std::string schedule;  // QueueOrderNames; empty: the preset's, or fifo
  double age_bound_seconds = kDefaultAgeBoundSeconds;
  double ttft_objective_seconds = 5;   // of the order "objective"
  double max_decode_step_seconds = 0;  // 0: batches are not bounded by time
  std::string request_size;            // of mlq; empty: the preset's, or product
  std::string lane_count = "worth-it", count_cached = "everywhere";
  std::string length_predictor = "history", length_proxy;
  ConstantFlags constants;
};

void AddScheduleFlags(CommandLine& line, ScheduleFlags& flags);
// What the flags say, without the times, which are settings (SystemSettings); what they leave open stays. Errors name
// the flag and what it takes.
Status ApplyScheduleFlags(const ScheduleFlags& flags, RuntimeOptions& options);

}  // namespace loramux
