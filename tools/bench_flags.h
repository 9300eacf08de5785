// The command-line flags of `loramux bench`.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "loadgen/api_client.h"
#include "loadgen/report.h"
#include "loadgen/runner.h"
#include "loadgen/session_maker.h"
#include "tools/command_line/command_line.h"

namespace loramux::load {

// The flags as given. The help texts (bench_flags.cc) describe each. bench_options.h completes what has options of its
// own from the rest.
struct BenchFlags {
  HttpClientOptions client{.user_agent = "loramux-bench"};
  RunOptions run;
  SessionOptions sessions{.seed = 1};
  ServiceObjective objective;
  // The server.
  std::string url = "http://127.0.0.1:8000", model, endpoint = "chat", api_key, api_key_file;
  std::vector<std::string> headers;
  double timeout_s = 300;
  bool no_stream = false;
  // The load.
  double rate = 0, time_scale = 1, length_scale = 1, trace_start_s = 0;
  std::string trace;
  // Adapters.
  bool adapters_from_server = false, warmup = false;
  std::string adapter_distribution = "uniform";
  double base_share = -1;
  // Prompts and answers.
  std::string input_tokens = "128", output_tokens = "64", tasks;
  bool stop_at_eos = false;
  // Results.
  std::string json, html, from;
  std::vector<std::string> compare;
  bool with_requests = false, no_progress = false;

  // True if requests are sent at given times, whether earlier ones have been answered or not.
  bool open_loop() const { return rate > 0 || !trace.empty(); }
};

// Adds the flags to `line`; they write into `flags`, which must outlive it.
void AddBenchFlags(CommandLine& line, BenchFlags& flags);

// Checks combinations of flags and fills in defaults that depend on other flags. Errors name the flag.
Status CompleteFlags(BenchFlags& flags);

// Describes the load, such as "open loop, 8 /s at random".
std::string DescribeLoad(const BenchFlags& flags);

}  // namespace loramux::load
