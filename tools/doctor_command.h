// `loramux doctor`: whether this machine can serve, and what would make it faster.
#pragma once

#include "tools/command_line/command_line.h"

namespace loramux {

Command DoctorCommand();

}  // namespace loramux
