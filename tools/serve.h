// `loramux serve`: the server.
#pragma once

#include <cstdint>
#include <string>

#include "server/http_options.h"
#include "server/metrics.h"
#include "server/server.h"
#include "tools/adapter_flags.h"
#include "tools/runtime_flags.h"

namespace loramux {

struct ServeFlags {
  RuntimeFlags runtime;
  HttpServerOptions http;
  AdapterFlags adapters;
  MetricsOptions metrics;
  ProtectionOptions protection;
  std::string max_body_size = "16MiB";
  std::string max_unread_output = "1MiB";
  double drain_timeout_seconds = 30;
  double sse_keepalive_seconds = 0;
  bool ignore_fairness_header = false;
  std::string record;  // file for a recording of the engine; empty: none
  std::string record_limit = "1GiB";
  std::uint64_t seed = 0;  // of requests that bring none; 0: from the clock
};

void AddServeFlags(CLI::App& command, ServeFlags& flags);
// Serves until SIGINT or SIGTERM, then drains. Returns the process's exit status.
int RunServe(const ServeFlags& flags);

}  // namespace loramux
