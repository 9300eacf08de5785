// `loramux simulate --servers`: what a fleet behind routers would do with a load, or how many servers it needs.
#pragma once

#include "tools/simulate.h"

namespace loramux {

// Whether the flags ask for a fleet.
bool IsFleet(const FleetFlags& flags);
// Error: a flag of fleets without a fleet.
Status CheckFleetFlags(const FleetFlags& flags);
void AddFleetFlags(CommandLine& line, FleetFlags& flags);
// Prints a table to stdout and writes the files that the flags ask for.
Status ReportFleet(SimulateFlags flags);

}  // namespace loramux
