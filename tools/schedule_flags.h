// The flags that say who is served first.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "base/result.h"
#include "engine/runtime.h"

namespace loramux {

struct ScheduleFlags {
  std::string schedule = "fifo";              // QueueOrderNames
  double age_bound_seconds = 30;
  std::string request_size = "product", lane_count = "worth-it";   // of mlq
  std::string length_predictor = "history", length_proxy;
};

void AddScheduleFlags(CLI::App& command, ScheduleFlags& flags);
// Errors name the flag and what it takes.
Status ApplyScheduleFlags(const ScheduleFlags& flags, RuntimeOptions& options);

}  // namespace loramux
