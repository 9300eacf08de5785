// Usage counters by adapter: separate series for the busiest adapters and one sum for all others. The number of series
// is bounded, however many adapters there are.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"

namespace loramux {

// The name of the series that sums up all adapters without a series of their own.
inline constexpr const char* kOtherAdapters = "other";

// Usage of one adapter, or of several together.
struct AdapterCounts {
  std::int64_t requests = 0, prompt_tokens = 0, generation_tokens = 0;
};

// Thread-safe. A request counts for the series that its adapter has when the request ends. An adapter that becomes
// busier than the least busy adapter with a series takes over its place: the old series ends, and the new one starts at
// zero. So every series only grows while it exists, and its rate is correct. What an adapter did while it was part of
// the sum stays in the sum.
class AdapterUsage {
 public:
  // `max_series` is the number of adapters with a series of their own. REQUIRES: max_series > 0.
  explicit AdapterUsage(std::size_t max_series) : max_series_(max_series) {}

  // Adds the usage of one request of `adapter` that ended at `now`.
  void Add(const std::string& adapter, const AdapterCounts& counts, TimeNs now);

  // One adapter's counters, or the sum's (kOtherAdapters).
  struct Series {
    std::string adapter;
    AdapterCounts counts;
  };
  // Returns at most max_series series, sorted by name, and then the sum of all others once there is one.
  std::vector<Series> Collect() const;
  // The number of adapters with a score: at most kMaxRemembered.
  std::size_t remembered() const;
  static constexpr std::size_t kMaxRemembered = 16384;

 private:
  // The number of requests with exponential decay: a request's weight halves every ten minutes (kHalfLife). `value` is
  // as of `updated`.
  struct Score {
    double value = 0;
    TimeNs updated = 0;
  };
  static double At(const Score& score, TimeNs now);
  bool TakesSeries(const std::string& adapter, double score, TimeNs now);
  void Forget(TimeNs now);

  const std::size_t max_series_;
  mutable std::mutex mutex_;
  std::map<std::string, Score> scores_;          // every adapter seen recently
  std::map<std::string, AdapterCounts> series_;  // the busiest adapters
  AdapterCounts others_;
  bool any_others_ = false;
};

}  // namespace loramux
