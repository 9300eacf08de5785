// `loramux generate`: one prompt, one answer, without a server.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/runtime_flags.h"

namespace loramux {

struct GenerateFlags {
  RuntimeFlags runtime;
  std::string prompt;
  std::string lora;    // name of the adapter; empty: the base model
  std::string system;  // system message of the chat
  bool raw = false;    // no chat template
  std::int32_t max_tokens = -1;
  float temperature = 0.0f, top_p = 1.0f, min_p = 0.0f, repetition_penalty = 1.0f;
  std::int32_t top_k = 0;
  std::uint64_t seed = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;
};

void AddGenerateFlags(CLI::App& command, GenerateFlags& flags);
// Streams the answer to stdout, and a line of figures to stderr. Returns the process's exit status.
int RunGenerate(const GenerateFlags& flags);

}  // namespace loramux
