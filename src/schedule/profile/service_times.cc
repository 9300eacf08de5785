#include "schedule/profile/service_times.h"

#include <algorithm>
#include <utility>

namespace loramux {
namespace {

// Tokens of a prefill from which the time to compute one page is derived.
constexpr std::int64_t kPrefillTokens = 256;

constexpr double kMostRidgeTokens = 1 << 20;  // bounds the values of a profile

ReloadCostEstimator::Time TimeOf(const PerformanceModel::Link& link, std::int64_t page_bytes) {
  return {.page_ns = link.OccupiedSeconds(static_cast<double>(page_bytes)) * kNsPerSecond,
          .latency_ns = link.latency * kNsPerSecond};
}

}  // namespace

void PlanByModel(std::shared_ptr<const PerformanceModel> model, SystemSpec& scheduler, QueueOrderOptions& queue) {
  queue.lanes.costs = model;
  scheduler.ridge_tokens = model == nullptr ? 0 : RidgeTokens(*model);
  scheduler.costs = std::move(model);
}

std::int64_t RidgeTokens(const PerformanceModel& model) {
  if (model.per_prefill_token <= 0) return 0;
  const double floor = model.dense_floor + model.expert_floor * static_cast<double>(model.experts.count);
  const double tokens = floor / model.per_prefill_token;
  return static_cast<std::int64_t>(std::min(tokens, kMostRidgeTokens));
}

double ShortestStepSeconds(const PerformanceModel& model) {
  return model.SecondsOf({.decode_sequences = 1, .decode_context = 1});
}

double PrefillSeconds(const PerformanceModel& model, std::int64_t tokens, std::int64_t context) {
  if (tokens <= 0) return 0;
  return model.SecondsOf({.prefill_tokens = tokens,
                          .prefill_attention = tokens * context + tokens * (tokens + 1) / 2,
                          .prefill_sequences = 1,
                          .prefill_context = context + tokens});
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
