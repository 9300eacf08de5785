// Who is busy: counters by adapter for the busiest N and one sum for all others, so that the number of series is
// bounded however many adapters there are.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"

namespace loramux {

// The name under which the adapters without series of their own are summed up.
inline constexpr const char* kOtherAdapters = "other";

struct AdapterCounts {
  std::int64_t requests = 0, prompt_tokens = 0, generation_tokens = 0;
};

// Thread-safe. A request counts where its adapter stands when it ends. An adapter that becomes busier than the least
// busy one with a series takes its place: that series ends, and the new one begins at zero. So every series only grows
// while it exists, and rates are right; what an adapter did while it was among the others stays there.
class AdapterUsage {
 public:
  // REQUIRES: max_series > 0.
  explicit AdapterUsage(std::size_t max_series) : max_series_(max_series) {}

  void Add(const std::string& adapter, const AdapterCounts& counts, TimeNs now);

  struct Series {
    std::string adapter;
    AdapterCounts counts;
  };
  // At most max_series of them in order of name, then the others' sum, if there was ever one.
  std::vector<Series> Collect() const;
  // Names that are remembered; at most kMaxRemembered.
  std::size_t remembered() const;
  static constexpr std::size_t kMaxRemembered = 16384;

 private:
  // Requests, an older one counting less: half of it after every kHalfLife. Kept as of `updated`.
  struct Score {
    double value = 0;
    TimeNs updated = 0;
  };
  static double At(const Score& score, TimeNs now);
  bool TakesSeries(const std::string& adapter, double score, TimeNs now);
  void Forget(TimeNs now);

  const std::size_t max_series_;
  mutable std::mutex mutex_;
  std::map<std::string, Score> scores_;          // of all that were seen lately
  std::map<std::string, AdapterCounts> series_;  // of the busiest
  AdapterCounts others_;
  bool any_others_ = false;
};

}  // namespace loramux
