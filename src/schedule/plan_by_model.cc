#include "schedule/plan_by_model.h"

#include <utility>

#include "costs/service_times.h"

namespace loramux {
namespace {

// Tokens of a prefill from which the time to compute one page is derived.
constexpr std::int64_t kPrefillTokens = 256;

ReloadCostEstimator::Time TimeOf(const PerformanceModel::Link& link, std::int64_t page_bytes) {
  return {.page_ns = link.OccupiedSeconds(static_cast<double>(page_bytes)) * kNsPerSecond,
          .latency_ns = link.latency * kNsPerSecond};
}

}  // namespace

void PlanByModel(std::shared_ptr<const PerformanceModel> model, SystemSpec& spec) {
  spec.ridge_tokens = model == nullptr ? 0 : RidgeTokens(*model);
  spec.costs = std::move(model);
}

void ExpectReloads(const PerformanceModel& model, std::int64_t page_bytes, std::int64_t page_tokens,
                   ReloadCostEstimator& costs) {
  const auto expect = [&](ReloadFrom from, const PerformanceModel::Link& link) {
    if (link.bytes_per_second > 0) costs.Expect(from, TimeOf(link, page_bytes));
  };
  expect(ReloadFrom::kDisk, model.disk);
  expect(ReloadFrom::kHost, model.host_to_device);
  const double a_token = PrefillSeconds(model, kPrefillTokens, 0) / kPrefillTokens;
  costs.Expect(ReloadFrom::kComputation, {.page_ns = a_token * static_cast<double>(page_tokens) * kNsPerSecond});
}

}  // namespace loramux
