// `loramux top`: a running server in the terminal.
#pragma once

#include "tools/command_line/command_line.h"

namespace loramux {

Command TopCommand();

}  // namespace loramux
