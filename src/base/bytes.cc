#include "base/bytes.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace loramux {
namespace {

struct Unit {
  std::string_view suffix;  // lower case
  double bytes;
};
constexpr std::array<Unit, 14> kUnits = {{{"", 1},
                                          {"b", 1},
                                          {"k", 0x1p10},
                                          {"kib", 0x1p10},
                                          {"kb", 1e3},
                                          {"m", 0x1p20},
                                          {"mib", 0x1p20},
                                          {"mb", 1e6},
                                          {"g", 0x1p30},
                                          {"gib", 0x1p30},
                                          {"gb", 1e9},
                                          {"t", 0x1p40},
                                          {"tib", 0x1p40},
                                          {"tb", 1e12}}};

}  // namespace

Result<std::int64_t> ParseBytes(std::string_view text, const std::string& name) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  std::string suffix;
  for (const char* c = end; error == std::errc() && c != text.data() + text.size(); ++c) {
    if (*c != ' ') suffix += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  for (const Unit& unit : kUnits) {
    if (error != std::errc() || unit.suffix != suffix || !std::isfinite(number) || number < 0) continue;
    const double bytes = number * unit.bytes;
    if (bytes <= 0x1p62) return static_cast<std::int64_t>(bytes);
  }
  return InvalidArgument(
      name + ": expected an amount of memory such as 2GiB, 512MiB or 1000000, found '" + std::string(text) + "'", name);
}

std::string FormatBytes(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::fabs(value) >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  const bool whole = value == std::floor(value);
  std::snprintf(text, sizeof(text), whole ? "%.0f %s" : "%.2f %s", value, kNames[unit]);
  return text;
}

}  // namespace loramux
