// Time as a value. Only the engine and the server read a Clock. All other code takes `now` as an argument, so the
// simulator runs the same objects on a virtual clock.
#pragma once

#include <cstdint>

namespace loramux {

// Nanoseconds since an arbitrary, fixed origin; never decreases.
using TimeNs = std::int64_t;

inline constexpr TimeNs kNsPerUs = 1'000;
inline constexpr TimeNs kNsPerMs = 1'000'000;
inline constexpr TimeNs kNsPerSecond = 1'000'000'000;

// A source of time.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic time. Thread-safe.
  virtual TimeNs Now() const = 0;
  // Seconds since 1970-01-01 UTC, for `created` fields and logs. Thread-safe.
  virtual std::int64_t UnixSeconds() const = 0;
};

// The operating system's clocks.
class OsClock final : public Clock {
 public:
  TimeNs Now() const override;
  std::int64_t UnixSeconds() const override;
};

// A clock that moves only when told to, for the simulator and for tests. Not thread-safe.
class VirtualClock final : public Clock {
 public:
  explicit VirtualClock(TimeNs start = 0) : now_(start) {}
  TimeNs Now() const override { return now_; }
  std::int64_t UnixSeconds() const override { return now_ / kNsPerSecond; }
  // Sets the time. REQUIRES: time >= Now().
  void AdvanceTo(TimeNs time);
  // Moves the clock by `duration` nanoseconds.
  void Advance(TimeNs duration) { AdvanceTo(now_ + duration); }

 private:
  TimeNs now_;
};

}  // namespace loramux
