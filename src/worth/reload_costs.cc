#include "worth/reload_costs.h"

#include <algorithm>

#include "base/check.h"

namespace loramux {
namespace {

constexpr std::int64_t kRemembered = 32;  // window of the running means, in samples
constexpr std::int64_t kTrusted = 8;      // samples after which outliers are limited
constexpr double kSurprise = 4;
constexpr double kLatencyPages = 8;  // used where the latency cannot be measured
constexpr double kSpread = 0.1;      // relative spread of sizes below which all count as one size

// The first that is known sets the unit.
constexpr std::array kByUnit = {ReloadFrom::kDisk, ReloadFrom::kHost, ReloadFrom::kComputation};

}  // namespace

double ReloadCosts::OfAdapter(ReloadFrom from, double pages) const {
  return OrAssisted(from, pages, Latency(from) + Page(from) * pages);
}

double ReloadCosts::OrAssisted(ReloadFrom from, double pages, double load) const {
  if (!assisted.has_value() || from != ReloadFrom::kHost) return load;
  return std::clamp(assisted->latency + assisted->page * pages, kLeastShare * load, load);
}

double ReloadCosts::Page(ReloadFrom from) const {
  switch (from) {
    case ReloadFrom::kHost:
      return host.page;
    case ReloadFrom::kDisk:
      return disk.page;
    case ReloadFrom::kComputation:
      return computed_page;
  }
  return disk.page;
}

double ReloadCosts::Latency(ReloadFrom from) const {
  switch (from) {
    case ReloadFrom::kHost:
      return host.latency;
    case ReloadFrom::kDisk:
      return disk.latency;
    case ReloadFrom::kComputation:
      return 0;
  }
  return disk.latency;
}

void ReloadCostEstimator::Line::Add(double pages, double ns) {
  if (!(pages > 0) || !(ns > 0)) return;
  if (samples >= kTrusted) {
    const Time fit = Fit();
    const double expected = fit.latency_ns + fit.page_ns * pages;
    ns = std::clamp(ns, expected / kSurprise, expected * kSurprise);
  }
  samples = std::min(samples + 1, std::int64_t{1} << 40);
  const double weight = 1.0 / static_cast<double>(std::min(samples, kRemembered));
  const auto move = [weight](double& mean, double value) { mean += weight * (value - mean); };
  move(x, pages);
  move(y, ns);
  move(xx, pages * pages);
  move(xy, pages * ns);
}

ReloadCostEstimator::Time ReloadCostEstimator::Line::Fit() const {
  if (samples == 0) return {};
  const double variance = xx - x * x;
  if (variance < kSpread * kSpread * x * x) {
    const double page = y / (x + kLatencyPages);
    return {.page_ns = page, .latency_ns = kLatencyPages * page, .samples = samples};
  }
  // Both parts stay positive in spite of noise.
  const double page = std::clamp((xy - x * y) / variance, 0.05 * y / x, y / x);
  return {.page_ns = page, .latency_ns = y - page * x, .samples = samples};
}

void ReloadCostEstimator::SawLoad(ReloadFrom from, std::int64_t pages, TimeNs took) {
  CHECK(from != ReloadFrom::kComputation);
  loads_[from == ReloadFrom::kDisk ? 1 : 0].Add(static_cast<double>(pages), static_cast<double>(took));
}

// A line through the origin: each sample counts as one page, so the mean of y is the time per page.
void ReloadCostEstimator::SawPrefill(double pages, TimeNs took) {
  if (!(pages > 0)) return;
  Line& line = prefill_;
  double ns = static_cast<double>(took) / pages;
  if (line.samples >= kTrusted) ns = std::clamp(ns, line.y / kSurprise, line.y * kSurprise);
  if (!(ns > 0)) return;
  ++line.samples;
  line.y += (ns - line.y) / static_cast<double>(std::min(line.samples, kRemembered));
}

void ReloadCostEstimator::Expect(ReloadFrom from, const Time& time) {
  if (time.page_ns > 0 && time.latency_ns >= 0) expected_[static_cast<std::size_t>(from)] = time;
}

ReloadCostEstimator::Time ReloadCostEstimator::Of(ReloadFrom from) const {
  if (from == ReloadFrom::kComputation) return {.page_ns = prefill_.y, .latency_ns = 0, .samples = prefill_.samples};
  return loads_[from == ReloadFrom::kDisk ? 1 : 0].Fit();
}

ReloadCostEstimator::Time ReloadCostEstimator::BestOf(ReloadFrom from) const {
  const Time time = Of(from);
  return time.samples >= kFewestSamples ? time : expected_[static_cast<std::size_t>(from)];
}

double ReloadCostEstimator::UnitNs() const {
  const ReloadCosts defaults;
  for (const ReloadFrom from : kByUnit) {
    const Time time = BestOf(from);
    if (time.page_ns > 0) return time.page_ns / defaults.Page(from);
  }
  return 0;
}

ReloadCosts ReloadCostEstimator::Costs() const {
  ReloadCosts costs;
  const double unit_ns = UnitNs();
  for (const ReloadFrom from : kByUnit) {
    const Time time = BestOf(from);
    if (!(time.page_ns > 0)) continue;
    const double page = time.page_ns / unit_ns, latency = time.latency_ns / unit_ns;
    if (from == ReloadFrom::kDisk) costs.disk = {.page = page, .latency = latency};
    if (from == ReloadFrom::kHost) costs.host = {.page = page, .latency = latency};
    if (from == ReloadFrom::kComputation) costs.computed_page = page;
  }
  return costs;
}

}  // namespace loramux
