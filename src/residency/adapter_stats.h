// What the residency manager counts.
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"

namespace loramux {

// Upper bounds of the buckets of AdapterStats::load_times, which has one more bucket for longer times.
inline constexpr std::array<TimeNs, 16> kLoadTimeBounds = {
    1 * kNsPerMs,      2 * kNsPerMs,      5 * kNsPerMs,      10 * kNsPerMs,     20 * kNsPerMs,    50 * kNsPerMs,
    100 * kNsPerMs,    200 * kNsPerMs,    500 * kNsPerMs,    1 * kNsPerSecond,  2 * kNsPerSecond, 5 * kNsPerSecond,
    10 * kNsPerSecond, 20 * kNsPerSecond, 60 * kNsPerSecond, 120 * kNsPerSecond};

// Counters since the start, except the numbers of the current state in the first line, `active`, `known` and
// `kept`.
struct AdapterStats {
  std::int64_t device_resident = 0, host_resident = 0, loading = 0;
  std::int64_t device_loads = 0, disk_loads = 0, load_failures = 0;
  // Bytes of whole pages that arrived.
  std::int64_t disk_to_host_bytes = 0, disk_to_device_bytes = 0, host_to_device_bytes = 0;
  // Requests that arrived; where their adapter was at that time.
  std::int64_t asked = 0, asked_on_device = 0, asked_in_host = 0;
  std::int64_t active = 0;  // adapters with running requests, now
  std::int64_t device_evictions = 0, host_evictions = 0;
  std::int64_t cancelled_loads = 0;  // loads that retired adapters without requests gave up
  TimeNs load_time_total = 0;        // from the decision to residency on the device, over device_loads
  std::array<std::int64_t, kLoadTimeBounds.size() + 1> load_times = {};  // loads by duration; see kLoadTimeBounds
  std::int64_t known = 0;                                                // adapters in All(), in any tier
  std::int64_t kept = 0, dropped = 0;

  // Requests that arrived while their adapter was not on the device.
  std::int64_t cold_starts() const { return asked - asked_on_device; }
};

}  // namespace loramux
