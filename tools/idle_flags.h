// Flags that are accepted and change nothing beside the others that were given. A start says so, because who set one
// expects something of it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/runtime.h"
#include "tools/runtime_flags.h"

namespace loramux {

// Flags that change nothing for the same reason.
struct IdleFlags {
  std::string_view names;  // as LongName, separated by commas
  bool idle;
  std::string why;  // and what to use instead, without a full stop
};

// A line for each of `table` whose flags are idle and among `given` (CommandLine::TellGiven). It names those that were
// given.
std::vector<std::string> WarningsOfIdle(std::span<const std::string> given, std::span<const IdleFlags> table);

// The lines for the flags of AddRuntimeFlags, AddDeviceFlag, AddScheduleFlags, beside the options that
// they stand for (RuntimeOptionsOf). A flag that asks for what holds anyway has none.
std::vector<std::string> WarningsOfIdle(const RuntimeFlags& flags, const RuntimeOptions& options);

}  // namespace loramux
