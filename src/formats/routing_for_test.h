// What routers must choose, for the tests of all backends.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "formats/routing.h"

namespace loramux {

// What a router chooses for one token.
struct ChoiceForTest {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};

// The contract of RouteForm in double, by sorting. bias: added to the scores that choose, or null.
inline ChoiceForTest ExpectedChoice(const RouteForm& form, const float* logits, const float* bias) {
  const auto count = static_cast<std::size_t>(form.experts);
  std::vector<double> scores(count);
  double total = 0;
  for (std::size_t e = 0; e < count; ++e) {
    const double x = logits[e];
    scores[e] = form.score == RouteForm::Score::kSigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x);
    total += scores[e];
  }
  if (form.score == RouteForm::Score::kSoftmax) {
    for (double& score : scores) score /= total;
  }
  std::vector<double> choosing = scores;
  for (std::size_t e = 0; bias != nullptr && e < count; ++e) choosing[e] += static_cast<double>(bias[e]);
  const auto best_of = [](const std::vector<double>& of) {
    std::vector<std::int32_t> order(of.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) {
      return of[static_cast<std::size_t>(a)] > of[static_cast<std::size_t>(b)];
    });
    return order;
  };
  if (form.groups > 1) {
    const std::size_t size = count / static_cast<std::size_t>(form.groups);
    std::vector<double> of_groups;
    for (std::size_t g = 0; g < count; g += size) {
      std::vector<double> group(choosing.begin() + static_cast<std::ptrdiff_t>(g),
                                choosing.begin() + static_cast<std::ptrdiff_t>(g + size));
      std::ranges::sort(group, std::greater());
      of_groups.push_back(group[0] + (size > 1 ? group[1] : 0));
    }
    const std::vector<std::int32_t> order = best_of(of_groups);
    for (std::size_t g = static_cast<std::size_t>(form.chosen_groups); g < order.size(); ++g) {
      std::fill_n(choosing.begin() + order[g] * static_cast<std::ptrdiff_t>(size), size, -1e9);
    }
  }
  ChoiceForTest choice;
  double sum = 0;
  choice.experts = best_of(choosing);
  choice.experts.resize(static_cast<std::size_t>(form.per_token));
  for (const std::int32_t e : choice.experts) sum += scores[static_cast<std::size_t>(e)];
  for (const std::int32_t e : choice.experts) {
    const double weight = scores[static_cast<std::size_t>(e)] / (form.renormalise ? sum : 1);
    choice.weights.push_back(static_cast<float>(weight * static_cast<double>(form.scale)));
  }
  return choice;
}

}  // namespace loramux
