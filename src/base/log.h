// Logging: spdlog to stderr, set up once by the program. Libraries of the house log sparingly: the server and the
// engine's loader do; schedule, cache, memory and kernels do not log at all.
#pragma once

#include <string>

#include <spdlog/spdlog.h>

#include "base/result.h"

namespace loramux {

// Sets level ("trace", "debug", "info", "warn", "error", "off") and format of the default logger. Error: unknown level.
Status InitLogging(const std::string& level);

}  // namespace loramux
