// How fast prompts are computed, measured in the last steps.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace loramux {

// Fits a straight line through the last steps: seconds over prompt tokens. What a step takes without prompts (reading
// the weights, decoding) is its constant part, shared by all prompt tokens of the step. Needs no profile.
class PromptPace {
 public:
  // Notes a step that computed so many prompt tokens.
  void Add(std::int64_t prompt_tokens, TimeNs took);
  // Seconds per prompt token, if each step computes `step` of them. None: too few steps were seen, or too few prompts.
  // REQUIRES: step > 0.
  std::optional<double> SecondsPerToken(std::int64_t step) const;

 private:
  double steps_ = 0;                  // weighted, as all below
  double tokens_ = 0, seconds_ = 0;   // sums over steps
  double squares_ = 0, product_ = 0;  // sums of tokens squared; of tokens times seconds
};

}  // namespace loramux
