#include "cluster/pickers.h"

#include "base/prng.h"

namespace loramux {

std::size_t PositionByShare(const RouteContext& context, std::span<const Candidate> candidates, std::uint64_t random) {
  double sum = 0;
  for (const Candidate& candidate : candidates) sum += context.servers[candidate.index].share;
  double left = UnitDouble(random) * sum;
  for (std::size_t i = 0; i + 1 < candidates.size(); ++i) {
    left -= context.servers[candidates[i].index].share;
    if (left < 0) return i;
  }
  return candidates.size() - 1;
}

std::size_t PickByShare(const RouteContext& context, std::span<const Candidate> candidates) {
  return candidates[PositionByShare(context, candidates, context.random)].index;
}

std::size_t PickLeast(const RouteContext& context, std::span<const Candidate> candidates) {
  std::size_t best = 0, equal = 0;
  double least = 0;
  std::uint64_t random = context.random;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const double share = context.servers[candidates[i].index].share, own = candidates[i].cost;
    const double cost = own >= 0 ? own / share : own * share;
    if (i > 0 && cost > least) continue;
    if (i == 0 || cost < least) {
      least = cost;
      equal = 0;
    }
    // The n-th of the equal ones replaces the choice with the probability 1 / n.
    random = SplitMix64(random);
    if (++equal == 1 || random % equal == 0) best = i;
  }
  return candidates[best].index;
}

}  // namespace loramux
