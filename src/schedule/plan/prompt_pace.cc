#include "schedule/plan/prompt_pace.h"

#include <algorithm>

namespace loramux {
namespace {

constexpr double kKept = 63.0 / 64;      // weight of a step relative to the next one: some 64 steps count
constexpr double kFewestSteps = 8;       // below that there is no fit
constexpr double kLeastSpread = 16;      // standard deviation of the steps' prompt tokens that a slope needs
constexpr double kLeastMeanTokens = 64;  // prompt tokens of a mean step, where there is no slope

}  // namespace

void PromptPace::Add(std::int64_t prompt_tokens, TimeNs took) {
  if (took <= 0) return;
  const double tokens = static_cast<double>(prompt_tokens), seconds = static_cast<double>(took) / kNsPerSecond;
  steps_ = steps_ * kKept + 1;
  tokens_ = tokens_ * kKept + tokens;
  seconds_ = seconds_ * kKept + seconds;
  squares_ = squares_ * kKept + tokens * tokens;
  product_ = product_ * kKept + tokens * seconds;
}

std::optional<double> PromptPace::SecondsPerToken(std::int64_t step) const {
  if (steps_ <= kFewestSteps) return std::nullopt;
  const double tokens = tokens_ / steps_, seconds = seconds_ / steps_;
  const double spread = squares_ / steps_ - tokens * tokens;
  if (spread <= kLeastSpread * kLeastSpread) {  // all steps are alike: their mean is what a token takes
    if (tokens < kLeastMeanTokens) return std::nullopt;
    return seconds / tokens;
  }
  const double slope = std::max(0.0, (product_ / steps_ - tokens * seconds) / spread);
  const double constant = std::max(0.0, seconds - slope * tokens);
  return slope + constant / static_cast<double>(step);
}

}  // namespace loramux
