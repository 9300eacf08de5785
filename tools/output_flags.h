// The flags of `serve` and `batch` that say how models write calls of tools and reasoning.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "tools/command_line/command_line.h"

namespace loramux {

// As ReadOutputFormats takes them.
void AddOutputFlags(CommandLine& line, std::vector<std::string>& tool_call_parsers,
                    std::vector<std::string>& reasoning_parsers);

// Error: a name that no parser has. Needs no model.
Status CheckOutputFlags(const std::vector<std::string>& tool_call_parsers,
                        const std::vector<std::string>& reasoning_parsers);

}  // namespace loramux
