// `loramux quantize`: writes a model with quantised weights, and says what that cost.
#pragma once

#include "tools/command_line/command_line.h"

namespace loramux {

Command QuantizeCommand();

}  // namespace loramux
