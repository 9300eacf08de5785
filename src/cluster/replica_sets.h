// How many servers should hold each adapter. A cold adapter belongs to one server, so that the fleet's memory holds as
// many adapters as possible. A hot one gets more as its load grows. It gives them back at a lower load than it got
// them, and some time after the last change, so that a load near a limit does not move adapters to and fro.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace loramux {

// Not thread-safe.
class ReplicaSets {
 public:
  // `grow`: the share of one server that an adapter may load before it gets a further one. `shrink`: the share of each
  // server left, below which one is given back, `hold` after the last change at the earliest.
  explicit ReplicaSets(double grow = 0.5, double shrink = 0.3, TimeNs hold = 30 * kNsPerSecond)
      : grow_(grow), shrink_(shrink), hold_(hold) {}

  // Counts a request that takes `seconds` of one server, and returns the number of servers that should hold its adapter
  // from now on: 1 to `servers`.
  std::int64_t Count(std::string_view adapter, double seconds, std::int64_t servers, TimeNs now);
  // The number, without a request. 1 for an adapter that is not known.
  std::int64_t Replicas(std::string_view adapter) const;
  // Seconds of a server per second that the adapter takes.
  double LoadOf(std::string_view adapter, TimeNs now) const;
  std::size_t size() const { return adapters_.size(); }

  static constexpr std::size_t kMostAdapters = 1 << 16;  // beyond it, those of the least load are forgotten

 private:
  struct Entry {
    double seconds = 0;  // halved each half-life
    TimeNs at = 0;
    std::int64_t replicas = 1;
    TimeNs changed_at = 0;
  };
  double Decayed(const Entry& entry, TimeNs now) const;
  double Load(double seconds) const;
  void ForgetCold(TimeNs now);

  const double grow_, shrink_;
  const TimeNs hold_;
  std::map<std::string, Entry, std::less<>> adapters_;
};

}  // namespace loramux
