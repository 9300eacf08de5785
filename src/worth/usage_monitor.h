// The recent use of adapters, as eviction policies need it: request frequency, rate of reuse, and batch size.
//
// Counts visits that decay by half in a half-life, and those within a window of that length, indexed by the slot of the
// adapter in the residency manager. Recording takes constant time; it allocates only when there are more adapters than
// ever before. Not thread-safe; reads no clock.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "worth/reuse_rates.h"

namespace loramux {

// See the top of this file.
class UsageMonitor {
 public:
  // A visit count that decays.
  struct Visits {
    double frequency = 0;  // as of `at`
    TimeNs at = 0;
  };

  // A request begins with the adapter in this slot (Visit) or with the base model (VisitBase).
  void Visit(std::size_t slot, AdapterGeneration generation, TimeNs now);
  void VisitBase(TimeNs now) { Add(total_, now); }
  // The half-life and the window; before the first visit. REQUIRES: window >= kWindowParts ns.
  void set_window(TimeNs window) { window_ = window; }
  // Records that an adapter whose last visit is `visits` was still not visited at `now`. It was checked last `since`
  // nanoseconds ago.
  void SawNoVisit(const Visits& visits, TimeNs now, TimeNs since);
  // Recomputes the reuse rates, at most once a second; `remembered_s`: see ReuseRates::Remembered. Takes some
  // microseconds.
  void Learn(TimeNs now, double remembered_s);
  // Expected visits of an adapter with these visits, as a multiple of ReuseRates::Prior.
  double ReuseFactor(const Visits& visits, TimeNs now) const {
    return visits.frequency > 0 ? reuse_.Factor(visits.frequency, now - visits.at) : 1.0;
  }
  // The time over which RecentBatchSize takes the mean; before the first batch. REQUIRES: window >= kBuckets ns.
  void set_batch_window(TimeNs window) { bucket_ = window / static_cast<TimeNs>(kBuckets); }
  // Records a batch of `requests` requests. REQUIRES: `now` does not decrease.
  void SawBatch(std::int64_t requests, TimeNs now);

  // The adapter's visits; none if it was never visited or another adapter used its slot last.
  Visits Of(std::size_t slot, AdapterGeneration generation) const;
  // The adapter's visits within the last window, in steps of a sixteenth of it. REQUIRES: no visit is later than `now`.
  std::int64_t InWindow(std::size_t slot, AdapterGeneration generation, TimeNs now) const;
  // Visits of all adapters and the base model, decayed to `now`.
  double TotalVisits(TimeNs now) const { return Decayed(total_, now); }
  // Mean number of requests in a batch over the last 5 seconds (set_batch_window), in steps of a twentieth of it
  // (FastLibra 5.1's BS); 0 without batches.
  double RecentBatchSize(TimeNs now) const;

  // The frequency of `visits`, decayed to `now`.
  double Decayed(const Visits& visits, TimeNs now) const;

 private:
  static constexpr std::size_t kBuckets = 20;
  static constexpr std::int64_t kWindowParts = 16;
  // The visits of the adapter in one slot.
  struct Entry {
    AdapterGeneration generation;
    Visits visits;
    std::int64_t part = 0;                               // the last part of a window with a visit, since time 0
    std::array<std::uint32_t, kWindowParts> parts = {};  // visits by part, modulo kWindowParts, up to that one
  };
  // The batches of one interval of bucket_.
  struct Bucket {
    std::int64_t number = -1;  // in units of bucket_ since time 0
    std::int64_t batches = 0, requests = 0;
  };

  // Adds a visit at `now`.
  void Add(Visits& visits, TimeNs now) const;
  // The number of the part of a window that `now` is in.
  std::int64_t PartOf(TimeNs now) const { return now / (window_ / kWindowParts); }

  TimeNs window_ = 60 * kNsPerSecond;
  std::vector<Entry> entries_;  // by slot
  Visits total_;
  ReuseRates reuse_;  // how often adapters are used again; "idle" is the time since the last visit
  TimeNs learned_at_ = 0;
  TimeNs bucket_ = 250 * kNsPerMs;
  Bucket buckets_[kBuckets];  // buckets of the batch window, by number
};

// One adapter's addend in FastLibra's equation 3, the number of adapters that a batch is expected to need. It is the
// probability that at least one of `batch_size` requests uses an adapter that a single request uses with probability
// `prob`.
double ProbabilityInBatch(double prob, double batch_size);

}  // namespace loramux
