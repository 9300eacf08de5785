#include "report/number_format.h"

#include <cmath>

#include <fmt/format.h>

namespace loramux {

std::string FormatNumber(double value) {
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size < 1) return fmt::format("{:.3f}", value);
  if (size < 10) return value == std::round(value) ? fmt::format("{:.0f}", value) : fmt::format("{:.2f}", value);
  if (size < 100) return value == std::round(value) ? fmt::format("{:.0f}", value) : fmt::format("{:.1f}", value);
  const std::string digits = fmt::format("{:.0f}", size);
  std::string result = value < 0 ? "-" : "";
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) result += ',';
    result += digits[i];
  }
  return result;
}

std::string FormatMs(double milliseconds) {
  if (milliseconds >= 1000) return FormatNumber(milliseconds / 1000) + " s";
  return FormatNumber(milliseconds) + " ms";
}

std::string FormatShare(double share) {
  const double percent = share * 100;
  // Never round up to 100 %.
  if (percent > 99 && percent < 100) return fmt::format("{:.2f} %", std::floor(percent * 100) / 100);
  return percent == std::round(percent) ? fmt::format("{:.0f} %", percent) : fmt::format("{:.1f} %", percent);
}

}  // namespace loramux
