// `loramux controller`: LoraAdapter objects of Kubernetes -> the catalogue of a fleet.
#pragma once

#include "tools/command_line/command_line.h"

namespace loramux {

Command ControllerCommand();

}  // namespace loramux
