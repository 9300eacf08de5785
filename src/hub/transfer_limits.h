// When a transfer over the network is given up.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace loramux {

// A broken transfer goes on where it broke. A stall is a transfer under `least_bytes_per_second` for `stall_seconds`.
struct TransferLimits {
  long connect_seconds = 20;
  long stall_seconds = 30;
  long least_bytes_per_second = 1024;
  int attempts = 5;                        // in a row with less than `progress_bytes` each
  std::int64_t progress_bytes = 64 << 10;  // so a source that drips is given up
  // With all attempts, a transfer may take this long, and the time that its bytes take at the floor. 0: no such limit.
  long patience_seconds = 60;
  std::int64_t floor_bytes_per_second = 32 << 10;
};

// The time of one transfer. Bytes that come extend it, so large files get more time, and a file that came fast at first
// may be slow at the end. A source that only drips earns none, whatever size it announces.
class TransferTime {
 public:
  TransferTime(const TransferLimits& limits, TimeNs begin) : limits_(limits), begin_(begin) {}

  void Came(std::int64_t bytes) { bytes_ += bytes; }
  bool Over(TimeNs now) const {
    const double earned = static_cast<double>(bytes_) / static_cast<double>(limits_.floor_bytes_per_second);
    const double seconds = static_cast<double>(now - begin_) / static_cast<double>(kNsPerSecond);
    return limits_.patience_seconds > 0 && seconds > static_cast<double>(limits_.patience_seconds) + earned;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  TransferLimits limits_;
  TimeNs begin_;
  std::int64_t bytes_ = 0;
};

// What the error says of a transfer whose time is over.
std::string TooSlow(const TransferLimits& limits, const TransferTime& time);

}  // namespace loramux
