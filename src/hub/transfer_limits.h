// When a transfer over the network is given up.
#pragma once

#include <cstdint>

namespace loramux {

// A broken transfer goes on where it broke. A stall is a transfer under `least_bytes_per_second` for `stall_seconds`.
struct TransferLimits {
  long connect_seconds = 20;
  long stall_seconds = 30;
  long least_bytes_per_second = 1024;
  int attempts = 5;                        // in a row with less than `progress_bytes` each
  std::int64_t progress_bytes = 64 << 10;  // so a source that drips is given up
};

}  // namespace loramux
