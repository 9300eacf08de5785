// The flags that `serve`, `generate` and `profile` share, and the start of a runtime from them.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/result.h"
#include "engine/runtime.h"
#include "tools/schedule_flags.h"

namespace loramux {

struct RuntimeFlags {
  std::string model_dir;
  std::vector<std::string> served_model_names;
  std::vector<std::string> lora_modules;      // name=path, or {"name": ..., "path": ...}
  std::string adapter_dir;
  std::string device_memory = "auto";
  std::string host_memory = "auto";
  std::string kv_dtype = "auto", lora_dtype = "auto";
  bool prefix_cache = true;
  std::string adapter_prefetch = "none";
  std::string cache = "lru", lora_variant = "mbgmv";
  ScheduleFlags schedule;                     // of serve
  std::string fairness = "vtc";               // of serve
  std::vector<std::string> tenant_weights;    // name=weight
  double fairness_max_wait_seconds = 30;
  std::int64_t page_tokens = 0, max_model_len = 0;
  std::int64_t max_num_seqs = 256, max_num_batched_tokens = 512, prefill_chunk = 256;
  std::int64_t max_loras = 0, max_lora_rank = 4096, max_cpu_loras = 0;
  int threads = 0;
  std::string log_level = "info", log_format = "text";
};

// Adds the flags to a subcommand.
void AddRuntimeFlags(CLI::App& command, RuntimeFlags& flags);

// The options that the flags stand for. Errors name the flag.
Result<RuntimeOptions> RuntimeOptionsOf(const RuntimeFlags& flags);

struct NamedPath {
  std::string name, path;
};
// The adapters that --lora-modules and --adapter-dir name, in order; a directory entry counts if it holds an
// adapter_config.json. Errors name the flag.
Result<std::vector<NamedPath>> AdaptersOf(const RuntimeFlags& flags);

// Loads the model with a progress bar on stderr, then registers every adapter. Errors name the flag or the file.
Result<std::unique_ptr<Runtime>> StartRuntime(const RuntimeFlags& flags);

}  // namespace loramux
