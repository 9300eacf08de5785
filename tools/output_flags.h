// The flags of `serve` and `batch` that say how models write calls of tools and reasoning.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "tools/command_line/command_line.h"

namespace loramux {

// As ReadOutputFormats takes them.
struct OutputFlags {
  std::vector<std::string> tool_call_parsers, reasoning_parsers;
};

void AddOutputFlags(CommandLine& line, OutputFlags& flags);

// Error: a name that no parser has. Needs no model.
Status CheckOutputFlags(const OutputFlags& flags);

}  // namespace loramux
