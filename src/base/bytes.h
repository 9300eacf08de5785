// Amounts of memory in human-readable form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux {

// Parses "2GiB", "512 MiB", "1.5G", "64KB" or "4096". Ki/Mi/Gi/Ti and a bare K/M/G/T are binary, KB/MB/GB/TB are
// decimal. Case does not matter. Error: any other text, a negative amount, or more than 2^62. `name` is the flag or
// field in the error.
Result<std::int64_t> ParseBytes(std::string_view text, const std::string& name);

// Formats an amount: "1.50 GiB", "12 KiB", "500 B".
std::string FormatBytes(std::int64_t bytes);

}  // namespace loramux
