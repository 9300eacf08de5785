// Lanes for requests of like size (Chameleon 4.3): how large a request is, how many lanes there are, where one ends and
// the next begins, and how many tokens each may have in use.
//
// Not thread-safe. Reads no clock. Deterministic.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "schedule/performance_model.h"

namespace loramux {

inline constexpr std::int32_t kMaxLanes = 4;  // Chameleon's K_max

// What the size of a request is made of (Chameleon 4.3.1).
enum class RequestSizeForm : std::uint8_t {
  kProduct,     // (A x input + B x output) x adapter: Chameleon's, of degree 2
  kSum,         // the three alike, of degree 1
  kOutputOnly,  // as uServe's
};
// How many clusters there are.
enum class LaneCountRule : std::uint8_t {
  // as many as each take away a tenth of the squares that one cluster has: 2 for two groups, 3 for an even spread
  kWorthIt,
  kLeastSquares,  // literally Chameleon's "minimal WCSS": as more clusters never have more, nearly always the most
};

struct SizeLanesOptions {
  RequestSizeForm form = RequestSizeForm::kProduct;
  double input_weight = 0.4, output_weight = 0.6;  // Chameleon's A and B
  LaneCountRule count_rule = LaneCountRule::kWorthIt;
  bool fixed = false;                   // Chameleon 5.4.5's comparison: four lanes of equal ranges, equal quotas
  TimeNs refresh = 300 * kNsPerSecond;  // Chameleon's T_refresh
  TimeNs slo = 5 * kNsPerSecond;        // what a request may take in all, for the quotas
  // For D, how long a lane's requests run: their prefill takes what the model says, each token of output what was seen
  // beside that. Null: all of it in proportion to their outputs, by what was seen.
  std::shared_ptr<const PerformanceModel> costs;
};

// What is known of a request when it comes in.
struct RequestExtent {
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;   // predicted
  std::int64_t adapter_tokens = 0;  // its adapter's memory, in tokens of keys and values; 0: the base model
  std::int64_t total() const { return input_tokens + output_tokens + adapter_tokens; }
};

// Groups of sorted values (bins) with the least sum of squared distances to the groups' means: exactly, by dynamic
// programming (in one dimension groups are intervals).
struct Clusters {
  std::vector<std::size_t> begins;  // where groups begin, the first at 0
  std::vector<double> means;
  double sum_of_squares = 0;
};
// Values that stay together.
struct SizeBin {
  double count = 0, sum = 0, squares = 0;
  void Add(double value) {
    ++count;
    sum += value;
    squares += value * value;
  }
};
// Into 1 group, 2, up to `most`; fewer where there are fewer bins. REQUIRES: bins are ascending, none is empty.
// O(most x n log n): about 30 us for 256 bins and 4 groups.
std::vector<Clusters> ClusterBins(std::span<const SizeBin> bins, std::int32_t most);
// Values into `count` groups; fewer where there are fewer different values.
Clusters ClusterSorted(std::span<const double> sorted, std::int32_t count);

// The minimum that a lane needs, of Chameleon's K*M/M/1 model: S x D x (1 / SLO + arrivals per second).
struct LaneLoad {
  double largest_tokens = 0;  // S
  double seconds = 0;         // D: how long its requests take
  double arrivals_per_second = 0;
};
// Each lane's quota in tokens. What is left above the minima is shared in proportion to them; where they exceed the
// total, all are cut in proportion. (The document asks for the sum to fit, and does not say what to do where it does
// not, nor what the "initial weights" of the spare tokens are.) Every lane gets something.
std::vector<double> LaneQuotas(std::span<const LaneLoad> loads, double total_tokens, double slo_seconds);

class SizeLanes {
 public:
  // `total_tokens`: what the device holds.
  SizeLanes(SizeLanesOptions options, double total_tokens);

  // In units of the largest input, output and adapter seen. At most 1.
  double SizeOf(const RequestExtent& extent) const;
  std::int32_t LaneOf(const RequestExtent& extent) const;
  std::int32_t lanes() const { return static_cast<std::int32_t>(quotas_.size()); }
  // Tokens that requests of the lane may have in use.
  double Quota(std::int32_t lane) const { return quotas_[static_cast<std::size_t>(lane)]; }
  std::span<const double> cut_offs() const { return cut_offs_; }  // lanes() - 1 of them, ascending

  // A request comes in, or has ended `duration` after it began to run.
  void SawArrival(const RequestExtent& extent, TimeNs now);
  void SawEnd(const RequestExtent& extent, TimeNs duration);

  // Fits lanes and quotas to recent requests, when it is time: after 100 arrivals, then each time that they have
  // doubled, and every `refresh`. True if it did: waiting requests are to be placed anew. Takes at most about 0.1 ms.
  bool Refit(TimeNs now);

 private:
  static constexpr std::size_t kRecent = 2048, kBins = 256;
  struct Arrival {
    RequestExtent extent;
    TimeNs at = 0;
  };
  double PrefillOf(const RequestExtent& extent) const;  // seconds; 0 without costs
  std::int32_t LaneOfSize(double size) const;
  void FitCutOffs();
  void FitQuotas(TimeNs now);

  const SizeLanesOptions options_;
  const double total_tokens_;
  RequestExtent largest_;              // of each, seen so far
  std::int64_t smallest_adapter_ = 0;  // tokens; 0: none seen
  std::vector<Arrival> recent_;        // a ring
  std::vector<double> sizes_;          // of recent_, at the last fit
  std::size_t next_ = 0;
  std::int64_t arrivals_ = 0, fitted_arrivals_ = 0;
  TimeNs first_arrival_ = 0, fitted_at_ = 0;
  std::vector<double> cut_offs_, quotas_;
  // smoothed; how long a request runs for each token of its output (with costs: after its prefill)
  double seconds_per_output_ = 0.05;
};

}  // namespace loramux
