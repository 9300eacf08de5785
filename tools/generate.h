// `loramux generate`: one prompt, one answer, without a server.
#pragma once

#include "tools/command_line/command_line.h"

namespace loramux {

Command GenerateCommand();

}  // namespace loramux
