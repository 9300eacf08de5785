// The policies: each is filters, a scorer and a picker, named in one table.
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cluster/filters.h"
#include "cluster/pickers.h"
#include "cluster/route_policy.h"
#include "cluster/scorers.h"

namespace loramux {
namespace {

// One row of the table.
struct Composition {
  RoutePolicyName name;
  std::array<RouteFilter, 2> filters;  // null: none
  RouteScorer score;
  RoutePicker pick;
  std::optional<LoraCostShape> shape = std::nullopt;  // the model is used in this shape; none: in its own
};

constexpr std::array<Composition, 12> kPolicies = {{
    {{"loramux", "least seconds for the request and all that it delays, among the homes of its adapter"},
     {KeepHeard, KeepLikelyHomes},
     SecondsOfAll,
     PickLeast},
    {{"algorithm1", "CaraServe's Algorithm 1 with the profile's shape of LoRA costs"},
     {KeepHeard},
     RankAwareCost,
     PickLeast},
    {{"algorithm1-bgmv", "Algorithm 1 with kernels padded to the largest rank"},
     {KeepHeard},
     RankAwareCost,
     PickLeast,
     LoraCostShape::kBgmv},
    {{"algorithm1-mbgmv", "Algorithm 1 with kernels at true ranks"},
     {KeepHeard},
     RankAwareCost,
     PickLeast,
     LoraCostShape::kMbgmv},
    {{"most-idle", "fewest requests"}, {KeepHeard}, RequestCount, PickLeast},
    {{"first-fit", "the fullest server that takes the request at once"}, {KeepHeard}, Emptiness, PickLeast},
    {{"random", "any server"}, {}, NoCost, PickByShare},
    {{"p2c", "the one with fewer requests of two by chance"}, {KeepHeard, KeepTwoByChance}, RequestCount, PickLeast},
    {{"rendezvous", "the adapter's first server with at most 1.25 times the mean requests"},
     {KeepWithinBound},
     RendezvousOrder,
     PickLeast},
    {{"lora-affinity", "llm-d's score of the adapter's state, then the shortest queue"},
     {KeepHeard, KeepBestLora},
     QueueLength,
     PickLeast},
    {{"prefix-affinity", "the longest cached beginning of the prompt, unless servers are unevenly loaded"},
     {KeepHeard, KeepLongestPrefix},
     RequestCount,
     PickLeast},
    {{"seconds", "least seconds as loramux, among all servers"}, {KeepHeard}, SecondsOfAll, PickLeast},
}};

// A copy of a model that describes the kernel of this shape. A fit knows the coefficients of one shape only; the
// other's are then taken from it: a product costs the same per token and rank, padded or not.
PerformanceModel InShape(const PerformanceModel& model, LoraCostShape shape) {
  PerformanceModel result = model;
  result.shape = shape;
  if (shape == LoraCostShape::kBgmv && model.per_padded_rank == 0 && model.per_padded_adapter == 0) {
    result.per_padded_rank = model.per_adapter_token_rank;
    result.per_padded_adapter = model.per_rank;
  }
  if (shape == LoraCostShape::kMbgmv && model.per_adapter_token_rank == 0 && model.per_rank == 0) {
    result.per_adapter_token_rank = model.per_padded_rank;
    result.per_rank = model.per_padded_adapter;
  }
  return result;
}

class ComposedPolicy final : public RoutePolicy {
 public:
  explicit ComposedPolicy(const Composition& parts) : parts_(parts) {}

  std::size_t Choose(const RouteContext& context) const override {
    CHECK(!context.servers.empty());
    if (!parts_.shape || *parts_.shape == context.model->shape) return ChooseWith(context);
    const PerformanceModel model = InShape(*context.model, *parts_.shape);
    RouteContext reshaped = context;
    reshaped.model = &model;
    return ChooseWith(reshaped);
  }

 private:
  std::size_t ChooseWith(const RouteContext& context) const {
    std::vector<Candidate> candidates(context.servers.size());
    for (std::size_t i = 0; i < candidates.size(); ++i) candidates[i].index = i;
    for (const RouteFilter filter : parts_.filters) {
      if (filter != nullptr) filter(context, candidates);
    }
    for (Candidate& candidate : candidates) candidate.cost = parts_.score(context, context.servers[candidate.index]);
    return parts_.pick(context, candidates);
  }

  const Composition& parts_;
};

constexpr auto kNames = [] {
  std::array<RoutePolicyName, kPolicies.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kPolicies[i].name;
  return names;
}();

}  // namespace

std::span<const RoutePolicyName> RoutePolicies() { return kNames; }

Result<std::unique_ptr<RoutePolicy>> MakeRoutePolicy(std::string_view name) {
  std::string valid;
  for (const Composition& parts : kPolicies) {
    if (parts.name.name == name) return std::unique_ptr<RoutePolicy>(std::make_unique<ComposedPolicy>(parts));
    valid += (valid.empty() ? "" : ", ") + std::string(parts.name.name);
  }
  return InvalidArgument("routing policy: expected one of " + valid + ", found '" + std::string(name) + "'",
                         "--policy");
}

}  // namespace loramux
