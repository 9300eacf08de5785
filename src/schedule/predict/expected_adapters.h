// Adapters that requests are expected to use soon, and what came of loading them early (AdapterPrefetch).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "residency/adapter_residency.h"
#include "schedule/request.h"
#include "worth/adapter_arrival_histogram.h"

namespace loramux {

// Adapters that were loaded before a request wanted them. Those neither used nor wasted are still on the device.
struct AdapterPrefetchStats {
  std::int64_t loads = 0;
  std::int64_t used = 0;    // a request arrived for it
  std::int64_t wasted = 0;  // it was evicted before one arrived
};

// Learns from the arrivals of requests when each adapter is used again. Expects nothing if `mode` is kNone. Does not
// own the residency.
class ExpectedAdapters {
 public:
  ExpectedAdapters(AdapterPrefetch mode, const ResidencyManager& residency, const ExpectationOptions& options = {})
      : mode_(mode), residency_(residency), histogram_(options) {}

  // A request with this adapter begins to wait at `at` (has left). REQUIRES: a reference to its adapter is held.
  void Arrived(const Request& request, TimeNs at);
  void Left(const Request& request, TimeNs now);
  // The adapter was evicted from the device.
  void Evicted(AdapterGeneration generation);
  // Its load ahead of demand began.
  void LoadBegan(AdapterGeneration generation);
  // There was no room for the load; it is not tried again before some time has passed.
  void PutOff(TimeNs now);

  // Brings the duration of loads up to date, and forgets adapters that cannot be loaded.
  void Refresh(TimeNs now);
  // True if a request is expected to use the adapter within the time that a load takes.
  bool IsExpected(const AdapterResidency& adapter, TimeNs now) const {
    return mode_ != AdapterPrefetch::kNone &&
           histogram_.Expects(adapter.slot, adapter.version->generation, now + lead_);
  }
  // The adapter that must be loaded now to be there in time, as of the last Refresh; none while a load is under way.
  std::optional<AdapterGeneration> Due(TimeNs now) const;
  // When an adapter will be due; none: not known.
  std::optional<TimeNs> NextDue() const;

  const AdapterPrefetchStats& stats() const { return stats_; }

 private:
  // Forgets that the adapter was prefetched. Returns whether it was, and was not used since.
  bool EndPrefetch(AdapterGeneration generation);

  const AdapterPrefetch mode_;
  const ResidencyManager& residency_;
  AdapterArrivalHistogram histogram_;
  std::vector<AdapterGeneration> prefetched_;  // by residency slot: prefetched and not used; kBaseModel: none
  AdapterPrefetchStats stats_;
  TimeNs lead_ = 0;        // mean duration of a load: it begins so long before the adapter is expected
  TimeNs not_before_ = 0;  // next attempt after one without room
  std::optional<AdapterGeneration> due_;
};

}  // namespace loramux
