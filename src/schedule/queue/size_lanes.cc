#include "schedule/queue/size_lanes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/check.h"
#include "costs/service_times.h"

namespace loramux {
namespace {

constexpr std::int64_t kFirstFit = 100;  // arrivals
// Share of the sum of squares of all sizes that a further lane must remove to be worth its cost.
constexpr double kWorthALane = 0.1;

// The sum of squared distances to the mean for any interval of bins, in constant time.
class IntervalCosts {
 public:
  explicit IntervalCosts(std::span<const SizeBin> bins)
      : counts_(bins.size() + 1), sums_(bins.size() + 1), squares_(bins.size() + 1) {
    for (std::size_t i = 0; i < bins.size(); ++i) {
      counts_[i + 1] = counts_[i] + bins[i].count;
      sums_[i + 1] = sums_[i] + bins[i].sum;
      squares_[i + 1] = squares_[i] + bins[i].squares;
    }
  }
  double Mean(std::size_t begin, std::size_t end) const {
    return (sums_[end] - sums_[begin]) / (counts_[end] - counts_[begin]);
  }
  double Cost(std::size_t begin, std::size_t end) const {
    const double sum = sums_[end] - sums_[begin];
    return std::max(0.0, squares_[end] - squares_[begin] - sum * sum / (counts_[end] - counts_[begin]));
  }

 private:
  std::vector<double> counts_, sums_, squares_;
};

// One row of the dynamic program: one more group than `previous`. The best begin of the last group never moves back
// as the end moves on. So the ends in the middle are solved first and bound the others.
class NextRow {
 public:
  NextRow(const IntervalCosts& costs, const std::vector<double>& previous) : costs_(costs), previous_(previous) {
    row_.assign(previous.size(), std::numeric_limits<double>::infinity());
    begins_.assign(previous.size(), 0);
    Solve(1, previous.size() - 1, 0, previous.size() - 1);
  }
  std::vector<double> row_;          // by end: least cost of bins [0, end)
  std::vector<std::size_t> begins_;  // by end: begin of the last group

 private:
  void Solve(std::size_t first_end, std::size_t last_end, std::size_t least, std::size_t most) {
    if (first_end > last_end) return;
    const std::size_t end = first_end + (last_end - first_end) / 2;
    for (std::size_t begin = least; begin < end && begin <= most; ++begin) {
      const double cost = previous_[begin] + costs_.Cost(begin, end);
      if (cost < row_[end]) {
        row_[end] = cost;
        begins_[end] = begin;
      }
    }
    if (end > first_end) Solve(first_end, end - 1, least, begins_[end]);
    Solve(end + 1, last_end, begins_[end], most);
  }
  const IntervalCosts& costs_;
  const std::vector<double>& previous_;
};

// Follows the begins of the last groups, in the rows of 2, 3, ... groups, back from the end.
Clusters Traced(const IntervalCosts& costs, std::span<const std::vector<std::size_t>> begins, std::size_t n,
                double sum_of_squares) {
  Clusters clusters{.sum_of_squares = sum_of_squares};
  std::size_t end = n;
  for (auto level = begins.rbegin(); level != begins.rend() && end > 0; ++level)
    clusters.begins.push_back(end = (*level)[end]);
  clusters.begins.push_back(0);
  std::sort(clusters.begins.begin(), clusters.begins.end());
  clusters.begins.erase(std::unique(clusters.begins.begin(), clusters.begins.end()), clusters.begins.end());
  for (std::size_t i = 0; i < clusters.begins.size(); ++i) {
    clusters.means.push_back(
        costs.Mean(clusters.begins[i], i + 1 < clusters.begins.size() ? clusters.begins[i + 1] : n));
  }
  return clusters;
}

}  // namespace

std::vector<Clusters> ClusterBins(std::span<const SizeBin> bins, std::int32_t most) {
  CHECK(!bins.empty() && most > 0);
  const std::size_t n = bins.size();
  const IntervalCosts costs(bins);
  std::vector<double> row(n + 1, 0);
  for (std::size_t end = 1; end <= n; ++end) row[end] = costs.Cost(0, end);
  std::vector<std::vector<std::size_t>> begins;
  std::vector<Clusters> clusters = {Traced(costs, begins, n, row[n])};
  for (std::int32_t count = 2; count <= std::min(most, static_cast<std::int32_t>(n)); ++count) {
    NextRow next(costs, row);
    row = std::move(next.row_);
    begins.push_back(std::move(next.begins_));
    clusters.push_back(Traced(costs, begins, n, row[n]));
  }
  return clusters;
}

Clusters ClusterSorted(std::span<const double> sorted, std::int32_t count) {
  std::vector<SizeBin> bins;
  std::vector<std::size_t> first;  // by bin: index of its first value in `sorted`
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (i == 0 || sorted[i] > sorted[i - 1]) {  // equal values stay in one group
      bins.emplace_back();
      first.push_back(i);
    }
    bins.back().Add(sorted[i]);
  }
  Clusters clusters = ClusterBins(bins, count).back();
  for (std::size_t& begin : clusters.begins) begin = first[begin];
  return clusters;
}

double LeastTokens(const LaneLoad& load, double slo_seconds) {
  return load.largest_tokens * load.seconds * (1.0 / slo_seconds + load.arrivals_per_second);
}

std::vector<double> LaneQuotas(std::span<const LaneLoad> loads, double total_tokens, double slo_seconds) {
  std::vector<double> quotas;
  double sum = 0;
  for (const LaneLoad& load : loads) sum += quotas.emplace_back(std::max(1.0, LeastTokens(load, slo_seconds)));
  for (double& quota : quotas) quota *= total_tokens / sum;
  return quotas;
}

SizeLanes::SizeLanes(SystemSpec spec) : spec_(std::move(spec)), fixed_(spec_.queue == "mlq-static") {
  CHECK(1 <= spec_.most_lanes && spec_.most_lanes <= kMaxLanes);
  recent_.reserve(kRecent);
  sizes_.reserve(kRecent);
  quotas_.reserve(kMaxLanes);
  cut_offs_.reserve(kMaxLanes);
  quotas_.push_back(spec_.total_tokens);
  if (spec_.costs != nullptr) seconds_per_output_ = ShortestStepSeconds(*spec_.costs);
}

double SizeLanes::PrefillOf(const RequestExtent& extent) const {
  const std::int64_t input = SizedInput(extent);
  return spec_.costs == nullptr ? 0 : PrefillSeconds(*spec_.costs, input, extent.input_tokens - input);
}

double SizeLanes::SizeOf(const RequestExtent& extent) const {
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return whole <= 0 ? 0.0 : std::min(1.0, static_cast<double>(part) / static_cast<double>(whole));
  };
  const double input = share(SizedInput(extent), largest_.input_tokens);
  const double output = share(extent.output_tokens, largest_.output_tokens);
  // The paper has no requests without an adapter. Here they count as if they used the smallest one; otherwise all
  // would have size 0.
  const std::int64_t adapter_tokens = std::max(extent.adapter_tokens, smallest_adapter_);
  const double adapter = largest_.adapter_tokens == 0 ? 1.0 : share(adapter_tokens, largest_.adapter_tokens);
  const double lengths = spec_.size_input_weight * input + spec_.size_output_weight * output;
  switch (spec_.request_size) {
    case RequestSizeForm::kProduct:
      return lengths * adapter;
    case RequestSizeForm::kSum:
      return (lengths + adapter) / 2;
    case RequestSizeForm::kOutputOnly:
      return output;
  }
  return 0;
}

std::int32_t SizeLanes::LaneOf(const RequestExtent& extent) const { return LaneOfSize(SizeOf(extent)); }

std::int32_t SizeLanes::LaneOfSize(double size) const {
  return static_cast<std::int32_t>(std::upper_bound(cut_offs_.begin(), cut_offs_.end(), size) - cut_offs_.begin());
}

void SizeLanes::SawArrival(const RequestExtent& extent, TimeNs now) {
  if (arrivals_++ == 0) first_arrival_ = fitted_at_ = now;
  largest_.input_tokens = std::max(largest_.input_tokens, SizedInput(extent));
  largest_.output_tokens = std::max(largest_.output_tokens, extent.output_tokens);
  largest_.adapter_tokens = std::max(largest_.adapter_tokens, extent.adapter_tokens);
  if (extent.adapter_tokens > 0 && (smallest_adapter_ == 0 || extent.adapter_tokens < smallest_adapter_)) {
    smallest_adapter_ = extent.adapter_tokens;
  }
  if (recent_.size() < kRecent) {
    recent_.push_back({extent, now});
  } else {
    recent_[next_] = {extent, now};
  }
  next_ = (next_ + 1) % kRecent;
}

void SizeLanes::SawEnd(const RequestExtent& extent, TimeNs duration) {
  const auto outputs = static_cast<double>(std::max<std::int64_t>(1, extent.output_tokens));
  double seconds = static_cast<double>(duration) / kNsPerSecond / outputs;
  // At least the time of a step with one sequence: part of the prompt may have been cached although it is counted, and
  // then its prefill took less.
  if (spec_.costs != nullptr) {
    seconds = std::max(ShortestStepSeconds(*spec_.costs), seconds - PrefillOf(extent) / outputs);
  }
  seconds_per_output_ += 0.02 * (seconds - seconds_per_output_);
}

bool SizeLanes::Refit(TimeNs now) {
  const bool enough =
      arrivals_ >= kFirstFit && arrivals_ >= 2 * fitted_arrivals_ && now - first_arrival_ < spec_.lane_refresh;
  const bool due = arrivals_ >= kFirstFit && now - fitted_at_ >= spec_.lane_refresh && arrivals_ > fitted_arrivals_;
  if (!enough && !due) return false;
  fitted_arrivals_ = arrivals_;
  fitted_at_ = now;
  sizes_.clear();
  for (const Arrival& arrival : recent_) sizes_.push_back(SizeOf(arrival.extent));
  FitCutOffs();
  FitQuotas(now);
  return true;
}

// Uses bins of equal width over recent sizes, so that the cost is bounded by the number of bins. A cut-off moves by
// at most one width.
void SizeLanes::FitCutOffs() {
  const auto [least, largest] = std::minmax_element(sizes_.begin(), sizes_.end());
  const double width = (*largest - *least) / static_cast<double>(kBins);
  cut_offs_.clear();
  if (fixed_) {
    for (std::int32_t i = 1; i < kMaxLanes; ++i) cut_offs_.push_back(*least + (*largest - *least) * i / kMaxLanes);
    return;
  }
  std::array<SizeBin, kBins> all;
  for (const double size : sizes_) {
    const double bin = width > 0 ? (size - *least) / width : 0;
    all[std::min(kBins - 1, static_cast<std::size_t>(bin))].Add(size);
  }
  std::vector<SizeBin> bins;
  std::copy_if(all.begin(), all.end(), std::back_inserter(bins), [](const SizeBin& bin) { return bin.count > 0; });
  const std::vector<Clusters> clusters = ClusterBins(bins, spec_.most_lanes);
  const Clusters* best = &clusters[0];
  for (std::size_t i = 1; i < clusters.size(); ++i) {
    const double gain = best->sum_of_squares - clusters[i].sum_of_squares;
    if (spec_.lane_count == LaneCountRule::kWorthIt && gain < kWorthALane * clusters[0].sum_of_squares) break;
    if (gain > 0) best = &clusters[i];
  }
  for (std::size_t i = 1; i < best->means.size(); ++i) cut_offs_.push_back((best->means[i - 1] + best->means[i]) / 2);
}

void SizeLanes::FitQuotas(TimeNs now) {
  std::vector<LaneLoad> loads(cut_offs_.size() + 1);
  if (fixed_) {
    quotas_.assign(loads.size(), spec_.total_tokens / static_cast<double>(loads.size()));
    return;
  }
  TimeNs oldest = now;
  std::vector<double> outputs(loads.size(), 0), prefills(loads.size(), 0), counts(loads.size(), 0);
  for (std::size_t i = 0; i < recent_.size(); ++i) {
    const Arrival& arrival = recent_[i];
    const auto lane = static_cast<std::size_t>(LaneOfSize(sizes_[i]));
    loads[lane].largest_tokens = std::max(loads[lane].largest_tokens, static_cast<double>(QuotaTokens(arrival.extent)));
    outputs[lane] += static_cast<double>(arrival.extent.output_tokens);
    prefills[lane] += PrefillOf(arrival.extent);
    ++counts[lane];
    oldest = std::min(oldest, arrival.at);
  }
  const double seconds = std::max(1.0, static_cast<double>(now - oldest) / kNsPerSecond);
  for (std::size_t lane = 0; lane < loads.size(); ++lane) {
    loads[lane].arrivals_per_second = counts[lane] / seconds;
    loads[lane].seconds =
        counts[lane] > 0 ? prefills[lane] / counts[lane] + outputs[lane] / counts[lane] * seconds_per_output_ : 0;
  }
  const double objective = static_cast<double>(spec_.objective) / kNsPerSecond;
  quotas_ = LaneQuotas(loads, spec_.total_tokens, objective);
  double least = 0;
  for (const LaneLoad& load : loads) least += LeastTokens(load, objective);
  least_share_ = least / spec_.total_tokens;
}

}  // namespace loramux
