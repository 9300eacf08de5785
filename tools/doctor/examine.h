// What `loramux doctor` finds out about a machine: whether the server can run on it, and what would make it faster.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/doctor/system_files.h"

namespace loramux {

enum class CheckVerdict {
  kOk,
  kBetter,  // the server runs; `advice` says what would be better
  kWrong    // the server does not run until `advice` is followed
};

// One line of the report.
struct Finding {
  std::string name;  // name of the check: "memory"
  CheckVerdict verdict = CheckVerdict::kOk;
  std::string found;
  std::string advice;  // what to change, and why; empty where nothing is to be done
};

// What the files do not tell. The program asks the system; tests say what they like.
struct MachineFacts {
  std::vector<std::string> gpus;           // one text each, as the driver describes them
  std::string gpu_problem;                 // why there are none
  std::string plugin;                      // the file of the CUDA plugin
  std::string plugin_problem;              // why there is none
  std::string address;                     // HOST:PORT that the server would listen on
  std::string address_problem;             // why it cannot; empty: it can
  std::string cache;                       // the folder of downloaded models
  std::optional<std::int64_t> cache_free;  // bytes on its disk; nullopt: unknown
  bool cache_writable = true;
};

// Every check, in the order of the report.
std::vector<Finding> Examine(const SystemFiles& files, const MachineFacts& facts);

// Whether a finding prevents serving.
bool PreventsServing(const std::vector<Finding>& findings);

// A table with a line or two a finding, and a sentence that sums it up. Holds no control character but line ends.
std::string FindingsAsText(const std::vector<Finding>& findings);
// {"serves": true, "checks": [{"name", "verdict", "found", "advice"}, ...]}; verdicts: "ok", "better", "wrong"; no
// advice: null.
nlohmann::ordered_json FindingsAsJson(const std::vector<Finding>& findings);

}  // namespace loramux
