// `loramux simulate --replay`: a recorded run of a real server, again.
#pragma once

#include "base/result.h"
#include "tools/simulate.h"

namespace loramux {

// Replays flags.replay and prints what came of it. `equal`: every plan was the recorded one. Errors: the file's.
Status ReportReplay(const SimulateFlags& flags, bool& equal);

}  // namespace loramux
