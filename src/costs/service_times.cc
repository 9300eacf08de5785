#include "costs/service_times.h"

#include <algorithm>

namespace loramux {
namespace {

constexpr double kMostRidgeTokens = 1 << 20;  // bounds the values of a profile

}  // namespace

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

}  // namespace loramux
