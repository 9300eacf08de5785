// `loramux inspect --devices`: what this machine can compute on.
#pragma once

#include "tools/inspect_report.h"

namespace loramux {

// The processor, the emulated device, and each NVIDIA GPU, or the sentence that says why there is none.
Report InspectDevices();

}  // namespace loramux
