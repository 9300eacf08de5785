#include "costs/cpu_assist.h"

#include <algorithm>
#include <vector>

#include "costs/performance_model.h"

namespace loramux {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;  // bounds the values of a profile

}  // namespace

bool operator==(const CpuAssist& a, const CpuAssist& b) {
  const auto equal = [](const CpuAssist::Group& x, const CpuAssist::Group& y) {
    return x.hand_off == y.hand_off && x.per_token_rank == y.per_token_rank && x.base_share == y.base_share;
  };
  return a.layers == b.layers && a.cores == b.cores && a.per_token == b.per_token &&
         std::equal(a.groups.begin(), a.groups.end(), b.groups.begin(), equal);
}

std::int64_t TokensPerCore(const PerformanceModel& model, std::int64_t rank) {
  const double beside = model.BaseProductSeconds({.decode_sequences = 1});
  double tokens = static_cast<double>(kMostTokens);
  for (const CpuAssist::Group& group : model.assist.groups) {
    const double per_token = group.per_token_rank * static_cast<double>(rank);
    if (per_token > 0) tokens = std::min(tokens, group.base_share * beside / per_token);
  }
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(tokens));
}

std::int64_t AssistCores(const PerformanceModel& model, std::int64_t tokens, std::int64_t rank) {
  const std::int64_t each = TokensPerCore(model, rank);
  return std::clamp<std::int64_t>((tokens + each - 1) / each, 1, std::max<std::int64_t>(1, model.assist.cores));
}

double AssistSeconds(const PerformanceModel& model, const StepLoad& load, std::span<const AssistedRows> rows) {
  const CpuAssist& assist = model.assist;
  if (assist.cores == 0 || rows.empty()) return 0;
  double tokens = 0, token_ranks = 0;
  std::int64_t cores = 0;
  for (const AssistedRows& part : rows) {
    tokens += static_cast<double>(part.tokens);
    token_ranks += static_cast<double>(part.tokens) * static_cast<double>(part.rank);
    cores += AssistCores(model, part.tokens, part.rank);
  }
  cores = std::min(cores, assist.cores);
  const double beside = model.BaseProductSeconds(load);
  double seconds = assist.per_token * tokens;
  for (const CpuAssist::Group& group : assist.groups) {
    const double host = group.hand_off + group.per_token_rank * token_ranks / static_cast<double>(cores);
    seconds += std::max(0.0, host - group.base_share * beside);
  }
  return seconds;
}

double AssistedStepSeconds(const PerformanceModel& model, const StepLoad& load, double on_device,
                           std::span<const AssistedRows> rows) {
  const std::int64_t layers = model.assist.layers;
  if (layers == 0 || model.assist.cores == 0) return on_device;
  const auto n = static_cast<double>(layers);
  const double all = AssistSeconds(model, load, rows);
  std::vector<AssistedRows> absent;
  double now = 0;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const double share = static_cast<double>(layer + 1) / n;
    absent.clear();
    for (const AssistedRows& part : rows) {
      if (part.arrival_begins + share * (part.arrival_ends - part.arrival_begins) > now) absent.push_back(part);
    }
    now += (on_device + (absent.size() == rows.size() ? all : AssistSeconds(model, load, absent))) / n;
  }
  return now;
}

}  // namespace loramux
