// `loramux profile`: measures how long steps and transfers take on this machine, and writes the performance model that
// `loramux simulate --profile` and `serve --profile` read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profile/measure.h"
#include "tools/command_line/command_line.h"
#include "tools/runtime_flags.h"

namespace loramux {

// The command-line flags.
struct ProfileFlags {
  RuntimeFlags runtime;    // as the server would be started
  MeasureOptions measure;  // what the flags leave open is set when it starts
  std::string output, measurements;
  // Ranks of random adapters. Empty: 8, 16, 32 and 64 if no adapters are given.
  std::vector<std::int64_t> ranks;
  std::int64_t random_adapters = 32;
  std::vector<std::string> lora_targets = {"q_proj", "k_proj", "v_proj", "o_proj"};
  std::string scratch;          // folder for the random adapters; empty: the system's temporary folder
  bool random_weights = false;  // random weights: the model's directory needs only config.json
  bool quick = false;
  int points = 0;              // 0: 400, or 160 with `quick`
  double seconds = 0;          // 0: 240, or 45 with `quick`
  double engine_seconds = -1;  // time to run the whole engine; -1: 30, or 10 with `quick`
};

// Adds the flags to `line`; they write into `flags`, which must outlive it.
void AddProfileFlags(CommandLine& line, ProfileFlags& flags);
// Writes the profile, and a report to stdout. Returns the process's exit status.
int RunProfile(const ProfileFlags& flags);

Command ProfileCommand();

}  // namespace loramux
