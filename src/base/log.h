// Logging through spdlog to stderr, initialised once by the program. Libraries log sparingly: the server and the
// engine's loader do; schedule, cache, memory and kernels do not log at all.
//
// Logged text may come from clients. Both formats keep a record on one line: text escapes control characters, JSON
// escapes everything. Invalid UTF-8 is replaced, and long text is cut.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include <spdlog/spdlog.h>

#include "base/result.h"

namespace loramux {

// Sets level ("trace", "debug", "info", "warn", "error", "off") and format ("text", "json") of the default logger.
// Error: unknown level or format.
Status InitLogging(const std::string& level, const std::string& format = "text");

// One field of a log record in addition to its message.
struct LogField {
  std::string_view name;
  std::variant<std::string_view, std::int64_t, double> value;
};

// Logs `message` with fields: `message name=value ...` in text, members of the object in JSON.
void LogWith(spdlog::level::level_enum level, std::string_view message, std::span<const LogField> fields);
inline void LogWith(spdlog::level::level_enum level, std::string_view message, std::initializer_list<LogField> fields) {
  LogWith(level, message, std::span<const LogField>(fields.begin(), fields.size()));
}

// The two formats, as InitLogging sets them.
std::unique_ptr<spdlog::formatter> MakeTextFormatter();
std::unique_ptr<spdlog::formatter> MakeJsonFormatter();

}  // namespace loramux
