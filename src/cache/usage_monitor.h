// How often adapters are asked for lately, how soon again, and how large batches are: what policies know of adapters.
//
// Counts visits, of which half are forgotten in each kFrequencyHalfLife, by the slot in which the residency manager
// keeps an adapter. Recording takes constant time and allocates only when there are more adapters than ever before.
// Not thread-safe; reads no clock.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "cache/reuse_rates.h"

namespace loramux {

class UsageMonitor {
 public:
  struct Visits {
    double frequency = 0;  // as of `at`
    TimeNs at = 0;
  };

  // A request begins with this adapter, which is in this slot; or with the base model.
  void Visit(std::size_t slot, AdapterGeneration generation, TimeNs now);
  void VisitBase(TimeNs now) { Add(total_, now); }
  // The adapter's visits as of the last one: still none since, at `now`, after having been looked at `since` ago.
  void SawNoVisit(const Visits& visits, TimeNs now, TimeNs since);
  // Makes rates of what was seen of visits, once a second; `remembered_s`: ReuseRates::Remembered. Some microseconds.
  void Learn(TimeNs now, double remembered_s);
  // Visits to be expected of such an adapter, over what ReuseRates::Prior says.
  double ReuseFactor(const Visits& visits, TimeNs now) const {
    return visits.frequency > 0 ? reuse_.Factor(visits.frequency, now - visits.at) : 1.0;
  }
  // A batch of so many requests. REQUIRES: `now` does not decrease.
  void SawBatch(std::int64_t requests, TimeNs now);

  // None for an adapter that was never visited, or whose slot another one had last.
  Visits Of(std::size_t slot, AdapterGeneration generation) const;
  // Of all adapters and the base model, at `now`.
  double TotalVisits(TimeNs now) const { return Decayed(total_, now); }
  // Requests in a batch, the mean of the last 5 seconds, to a quarter of a second (FastLibra 5.1's BS); 0 without
  // batches.
  double RecentBatchSize(TimeNs now) const;

  static double Decayed(const Visits& visits, TimeNs now);

 private:
  static constexpr std::size_t kBuckets = 20;
  static constexpr TimeNs kBucket = 250 * kNsPerMs;
  struct Entry {
    AdapterGeneration generation;
    Visits visits;
  };
  struct Bucket {
    std::int64_t number = -1;  // since time 0
    std::int64_t batches = 0, requests = 0;
  };

  static void Add(Visits& visits, TimeNs now);

  std::vector<Entry> entries_;  // by slot
  Visits total_;
  ReuseRates reuse_;  // of adapters; "idle" is the time since the last visit
  TimeNs learned_at_ = 0;
  Bucket buckets_[kBuckets];  // of the last 5 seconds, by number
};

// Adapters that a batch is expected to need (FastLibra's equation 3), made of one addend for each adapter: the
// probability that at least one of `batch_size` requests uses an adapter that a request uses with probability `prob`.
double ProbabilityInBatch(double prob, double batch_size);

}  // namespace loramux
