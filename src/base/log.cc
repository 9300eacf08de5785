#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace loramux {

Status InitLogging(const std::string& level) {
  const spdlog::level::level_enum parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off") {
    return InvalidArgument("log level: expected trace, debug, info, warn, error or off, found '" + level + "'",
                           "--log-level");
  }
  auto logger = spdlog::stderr_color_mt("loramux");
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
  spdlog::set_default_logger(std::move(logger));
  spdlog::set_level(parsed);
  return Ok{};
}

}  // namespace loramux
