// How the router of a mixture of experts chooses experts. Device code includes this header.
#pragma once

#include <cstdint>

namespace loramux {

// From the logits of a token, one for each expert: its scores, the experts with the highest ones, and their weights.
// If scores are equal, the lower number comes first.
struct RouteForm {
  // How scores are made of logits: over all experts together, or from each logit alone (DeepSeek-V3).
  enum class Score : std::uint8_t { kSoftmax, kSigmoid };

  std::int32_t experts = 0;
  std::int32_t per_token = 0;  // chosen; at most `experts`
  Score score = Score::kSoftmax;
  bool renormalise = false;  // the weights of the chosen are divided by their sum
  float scale = 1;           // then multiplied by this
  // The experts form so many groups of neighbours. Only those of the best groups are chosen, where a group counts as
  // the sum of its two highest scores.
  std::int32_t groups = 1, chosen_groups = 1;
};

}  // namespace loramux
