// Number formats for people, the same in the terminal and in HTML reports.
#pragma once

#include <string>

namespace loramux {

// Formats with about three significant digits and commas in thousands: 0.123, 4.57, 45.7, 1,234.
std::string FormatNumber(double value);
// Formats milliseconds with a suitable unit: 0.42 ms, 45.7 ms, 1.23 s, 123 s.
std::string FormatMs(double milliseconds);
// Formats a share as a percentage: 0.5 -> "50 %".
std::string FormatShare(double share);

}  // namespace loramux
