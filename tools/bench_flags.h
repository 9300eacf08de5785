// The command-line flags of `loramux bench`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "tools/command_line/command_line.h"

namespace loramux::load {

// The flags as given. The help texts (bench_flags.cc) describe each.
struct BenchFlags {
  // The server.
  std::string url = "http://127.0.0.1:8000", model, endpoint = "chat", api_key, api_key_file;
  std::vector<std::string> headers;
  double timeout_s = 300;
  bool insecure = false, no_stream = false;
  // The load.
  double rate = 0, time_scale = 1, length_scale = 1, trace_start_s = 0, duration_s = 0;
  std::string trace;
  int concurrency = 0;
  std::int64_t num_requests = 0;
  std::uint64_t seed = 1;
  // Adapters.
  std::vector<std::string> adapters;
  bool adapters_from_server = false, warmup = false;
  std::string adapter_distribution = "uniform";
  double zipf_s = 1, base_share = -1;
  // Prompts and answers.
  std::string input_tokens = "128", output_tokens = "64", tasks;
  std::int64_t max_input_tokens = 0, max_output_tokens = 0, prefix_tokens = 0, answer_tokens = 200;
  int turns = 1;
  double think_s = 0, temperature = 0;
  bool stop_at_eos = false;
  // Results.
  double slo_ttft_ms = 0, slo_tpot_ms = 0;
  std::string json, html, from;
  std::vector<std::string> compare;
  bool json_requests = false, no_progress = false;

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
