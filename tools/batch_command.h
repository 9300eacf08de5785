// `loramux batch`: the requests of a file, answered without a server.
#pragma once

#include "tools/command_line/command_line.h"

namespace loramux {

Command BatchCommand();

}  // namespace loramux
