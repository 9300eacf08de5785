// Lanes for requests of similar size (Chameleon 4.3): the size of a request, the number of lanes, the cut-offs between
// them, and the quota of tokens of each lane.
//
// Not thread-safe. Reads no clock. Deterministic.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "schedule/system_spec.h"

namespace loramux {

// The lengths of a request as known on its arrival, in tokens.
struct RequestExtent {
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;   // predicted
  std::int64_t adapter_tokens = 0;  // size of its adapter, in tokens of keys and values; 0: the base model
  std::int64_t cached_tokens = 0;   // tokens of the input that are in the cache; less than input_tokens, or both 0
  std::int64_t total() const { return input_tokens + output_tokens + adapter_tokens; }
};

// Groups of sorted values with the least sum of squared distances to the means of the groups. Exact, by dynamic
// programming: in one dimension, groups are intervals.
struct Clusters {
  std::vector<std::size_t> begins;  // index of the first bin of each group; begins[0] is 0
  std::vector<double> means;
  double sum_of_squares = 0;  // sum of the squared distances to the means
};
// Values that are not separated: count, sum and sum of squares.
struct SizeBin {
  double count = 0, sum = 0, squares = 0;
  void Add(double value) {
    ++count;
    sum += value;
    squares += value * value;
  }
};
// Clusters `bins` into 1, 2, ... `most` groups; element i has i + 1 groups. Ends at the number of bins.
// REQUIRES: bins are ascending, none is empty. O(most x n log n): about 30 us for 256 bins and 4 groups.
std::vector<Clusters> ClusterBins(std::span<const SizeBin> bins, std::int32_t most);
// Clusters values into `count` groups, or fewer if there are fewer distinct values. REQUIRES: ascending, not empty.
Clusters ClusterSorted(std::span<const double> sorted, std::int32_t count);

// The load of a lane. By Chameleon's K*M/M/1 model, the lane needs at least S x D x (1 / SLO + arrivals per second)
// tokens.
struct LaneLoad {
  double largest_tokens = 0;  // S: of the largest request
  double seconds = 0;         // D: mean time that its requests run
  double arrivals_per_second = 0;
};
// The tokens that a lane needs at least, Tok_min.
double LeastTokens(const LaneLoad& load, double slo_seconds);
// The quota of each lane in tokens: `total_tokens` shared in proportion to the minima, whether these exceed the total
// or leave tokens to spare. Each minimum counts as at least one token. (The paper requires that the minima fit. It
// neither says what to do if they do not, nor defines the "initial weights" by which spare tokens are shared.)
std::vector<double> LaneQuotas(std::span<const LaneLoad> loads, double total_tokens, double slo_seconds);

// Assigns lanes to requests, and adapts lanes and quotas to recent requests. One lane before the first fit.
class SizeLanes {
 public:
  // With the order "mlq-static": four lanes of equal ranges and quotas (Chameleon 5.4.5).
  explicit SizeLanes(SystemSpec spec);

  // The size of a request, relative to the largest input, output and adapter seen. From 0 to 1.
  double SizeOf(const RequestExtent& extent) const;
  // Tokens of its lane's quota that the request uses while it runs.
  std::int64_t QuotaTokens(const RequestExtent& extent) const {
    return extent.total() - (spec_.count_cached == CountCached::kNowhere ? extent.cached_tokens : 0);
  }
  // The lane of a request, by its size and the cut-offs.
  std::int32_t LaneOf(const RequestExtent& extent) const;
  // The number of lanes.
  std::int32_t lanes() const { return static_cast<std::int32_t>(quotas_.size()); }
  // Tokens that running requests of the lane may have in use.
  double Quota(std::int32_t lane) const { return quotas_[static_cast<std::size_t>(lane)]; }

  // The sum of the lanes' minima over all tokens, as of the last fit; 0: none, or equal quotas. "The total number of
  // available tokens in the system must be greater than or equal to" that sum (4.3.5): above 1 no quotas keep the
  // objective.
  double LeastShare() const { return least_share_; }

  // Notes that a request arrived at `now`.
  void SawArrival(const RequestExtent& extent, TimeNs now);
  // Notes that a request finished `duration` after its first admission.
  void SawEnd(const RequestExtent& extent, TimeNs duration);

  // Fits lanes and quotas to recent requests when a fit is due: after 100 arrivals, each time that the number of
  // arrivals has doubled since, and every `refresh`. Returns true if it did; waiting requests must then be placed anew.
  // Takes at most about 0.1 ms.
  bool Refit(TimeNs now);

 private:
  static constexpr std::size_t kRecent = 2048, kBins = 256;  // arrivals that a fit uses, and their bins
  // An arrival that the next fit uses.
  struct Arrival {
    RequestExtent extent;
    TimeNs at = 0;
  };
  // Input tokens that are to be computed, or all, as CountCached says.
  std::int64_t SizedInput(const RequestExtent& extent) const {
    return extent.input_tokens - (spec_.count_cached == CountCached::kEverywhere ? 0 : extent.cached_tokens);
  }
  // Seconds that the prefill of the request takes; 0 without a performance model.
  double PrefillOf(const RequestExtent& extent) const;
  // The lane of a size.
  std::int32_t LaneOfSize(double size) const;
  // Sets cut_offs_ from sizes_.
  void FitCutOffs();
  // Sets quotas_ from recent_ and cut_offs_.
  void FitQuotas(TimeNs now);

  const SystemSpec spec_;
  const bool fixed_;
  RequestExtent largest_;              // the largest of each length seen so far; input: SizedInput
  std::int64_t smallest_adapter_ = 0;  // tokens; 0: no adapter seen
  std::vector<Arrival> recent_;        // a ring buffer
  std::vector<double> sizes_;          // sizes of recent_, as of the last fit
  std::size_t next_ = 0;               // index in recent_ to overwrite next
  std::int64_t arrivals_ = 0, fitted_arrivals_ = 0;
  TimeNs first_arrival_ = 0, fitted_at_ = 0;
  std::vector<double> cut_offs_, quotas_;
  double least_share_ = 0;
  // Smoothed running time of a request per output token; with a performance model, without its prefill.
  double seconds_per_output_ = 0.05;
};

}  // namespace loramux
