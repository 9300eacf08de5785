// Numbers for people, the same in the terminal and in the report.
#pragma once

#include <string>

namespace loramux::load {

// About three significant digits, with commas in thousands: 0.123, 4.57, 45.7, 1,234.
std::string FormatNumber(double value);
// Milliseconds with a unit that suits: 0.42 ms, 45.7 ms, 1.23 s, 123 s.
std::string FormatMs(double milliseconds);
// 0.5 -> "50 %".
std::string FormatShare(double share);

}  // namespace loramux::load
