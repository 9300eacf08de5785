// `loramux simulate --servers`: what a fleet behind routers would do with a load, or how many servers it needs.
#pragma once

#include "tools/simulate.h"

namespace loramux {

void AddFleetFlags(CommandLine& line, FleetFlags& flags);
// Prints a table to stdout and writes the files that the flags ask for.
Status ReportFleet(SimulateFlags flags);

}  // namespace loramux
