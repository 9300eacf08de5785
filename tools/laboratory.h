// The commands that measure, load and simulate servers: profile, bench, simulate and experiment. Serving needs none of
// them, so a build may leave them out (CMake option LORAMUX_BUILD_LABORATORY; `make demo` does).
#pragma once

#include <string>

#include "tools/command_line/command_line.h"

namespace loramux {

// Adds the four commands, or, in a build without them, their names with what to do. `command_line` is what the user
// typed; reports show it.
void AddLaboratory(Program& program, std::string command_line);

}  // namespace loramux
