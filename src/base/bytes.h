// Amounts of memory as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux {

// "2GiB", "512 MiB", "1.5G", "64KB", "4096": binary for Ki/Mi/Gi/Ti and for a bare K/M/G/T, decimal for KB/MB/GB/TB.
// Case does not matter. Error: anything else, negative, or more than 2^62; `name` is the flag or field.
Result<std::int64_t> ParseBytes(std::string_view text, const std::string& name);

// "1.50 GiB", "12 KiB", "500 B".
std::string FormatBytes(std::int64_t bytes);

}  // namespace loramux
