// `loramux serve`: the server.
#pragma once

#include "tools/command_line/command_line.h"

namespace loramux {

Command ServeCommand();

}  // namespace loramux
