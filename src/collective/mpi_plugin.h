// What the plugin libloramux_mpi.so offers to the program: one C function, kMpiPluginFunction. Both are built from the
// same headers, which the version proves.
#pragma once

#include <memory>

#include "base/clock.h"
#include "base/result.h"
#include "collective/collectives.h"

namespace loramux {

inline constexpr const char* kMpiPluginFunction = "loramux_mpi_plugin";

// `version` comes first in every version, so that a reader of any version can compare it.
struct MpiPlugin {
  const char* version;  // LORAMUX_MPI_INTERFACE; if it differs, nothing else may be used
  // As OpenMpiGroup.
  Result<std::unique_ptr<Collectives>> (*open)(TimeNs wait_limit);
};
using MpiPluginFunction = const MpiPlugin* (*)();

// This process's end of the group of all processes that mpirun started; a group of one if it started none. Once in a
// process. The group's end finalises MPI, unless it has failed. Error (kUnavailable): the plugin or MPI is not there;
// says what to install.
Result<std::unique_ptr<Collectives>> OpenMpiGroup(TimeNs wait_limit);

}  // namespace loramux
