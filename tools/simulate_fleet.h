// `loramux simulate --servers`: what a fleet behind routers would do with a load, or how many servers it needs.
#pragma once

#include "tools/simulate.h"

namespace loramux {

// Error: a flag of fleets without a fleet.
Status CheckFleetFlags(const SimulateFlags& flags);
void AddFleetFlags(CommandLine& line, SimulateFlags& flags);
// Prints a table to stdout and writes the files that the flags ask for.
Status ReportFleet(SimulateFlags flags);

}  // namespace loramux
