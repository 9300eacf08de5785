// What the meetings of a warp compute.
#pragma once

#include "gpu/kernel_api.h"

namespace loramux::gpu::emulated {

// The call's name, for messages.
const char* NameOf(Meeting meeting);

// The work of a meeting, done once for all lanes: from what they brought to what they take.
void MeetingWork(Meeting meeting, Slots slots);

}  // namespace loramux::gpu::emulated
