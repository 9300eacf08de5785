// Lines of comma-separated fields, as recordings have them.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace loramux {

// Returns nanoseconds, rounded.
inline TimeNs ToNs(double seconds) { return static_cast<TimeNs>(std::llround(seconds * 1e9)); }

// Returns the whole text as a number, or nullopt.
template <typename Number>
std::optional<Number> ParseNumber(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Returns the fields between the commas: at least one, which may be empty.
inline std::vector<std::string_view> SplitFields(std::string_view line) {
  std::vector<std::string_view> fields;
  for (std::size_t at = 0;;) {
    const auto end = line.find(',', at);
    fields.push_back(line.substr(at, end == std::string_view::npos ? end : end - at));
    if (end == std::string_view::npos) return fields;
    at = end + 1;
  }
}

// Calls visit(line, number) for each non-empty line, without its line break; the first has number 1. Stops at the first
// error and returns it.
template <typename Visit>
Status ForEachLine(std::string_view text, const Visit& visit) {
  std::int64_t number = 0;
  while (!text.empty()) {
    const auto end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number;
    if (!line.empty()) RETURN_IF_ERROR(visit(line, number));
  }
  return Ok{};
}

}  // namespace loramux
