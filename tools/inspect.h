// `loramux inspect`: what is in a model or adapter directory, and what it will take in memory.
#pragma once

#include "tools/command_line/command_line.h"

namespace loramux {

Command InspectCommand();

}  // namespace loramux
