// `loramux route`: one address for many servers.
#pragma once

#include "tools/command_line/command_line.h"

namespace loramux {

Command RouteCommand();

}  // namespace loramux
