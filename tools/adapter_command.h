// `loramux adapter`: what people do with the files of adapters.
#pragma once

#include "tools/command_line/command_line.h"

namespace loramux {

Command AdapterCommand();

}  // namespace loramux
