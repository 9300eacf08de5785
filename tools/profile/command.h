// `loramux profile`: how long steps and transfers take on this machine, as a model that `loramux simulate --profile`
// and `serve --profile` read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/runtime_flags.h"
#include "tools/command_line/command_line.h"

namespace loramux {

struct ProfileFlags {
  RuntimeFlags runtime;  // what the server would be started with
  std::string output, measurements;
  // of random adapters; empty: 8, 16, 32, 64 if no adapters are given
  std::vector<std::int64_t> ranks;
  std::int64_t random_adapters = 32;
  std::vector<std::string> lora_targets = {"q_proj", "k_proj", "v_proj", "o_proj"};
  std::string scratch;          // where random adapters are written; empty: the system's place
  bool random_weights = false;  // of the model: its directory needs config.json only
  bool quick = false;
  int points = 0;                            // 0: 400, or 160 if quick
  double seconds = 0;                        // 0: 240, or 45 if quick
  double engine_seconds = -1;                // of running the engine; -1: 30, or 10 if quick
  std::vector<double> rates;                 // requests a second; empty: by what it sustains
  double input_mean = 96, output_mean = 32;  // tokens of those
  std::uint64_t seed = 1;
};

void AddProfileFlags(CommandLine& line, ProfileFlags& flags);
// Writes the profile, and a report to stdout. Returns the process's exit status.
int RunProfile(const ProfileFlags& flags);

Command ProfileCommand();

}  // namespace loramux
