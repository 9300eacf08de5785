#include "cluster/filters.h"

#include <algorithm>
#include <utility>

#include "base/prng.h"
#include "cluster/cached_prefix.h"
#include "cluster/rendezvous.h"
#include "cluster/scorers.h"
#include "cluster/server_load.h"

namespace loramux {
namespace {

const ServerView& ViewOf(const RouteContext& context, const Candidate& candidate) {
  return context.servers[candidate.index];
}

// Keeps the candidates for which `keep(view)` holds; all if it holds for none.
template <typename Predicate>
void KeepIf(const RouteContext& context, std::vector<Candidate>& candidates, const Predicate& keep) {
  const auto middle = std::stable_partition(candidates.begin(), candidates.end(), [&](const Candidate& candidate) {
    return keep(ViewOf(context, candidate));
  });
  if (middle != candidates.begin()) candidates.erase(middle, candidates.end());
}

// Keeps the candidates with the largest `value(view)`.
template <typename Value>
void KeepLargest(const RouteContext& context, std::vector<Candidate>& candidates, const Value& value) {
  for (Candidate& candidate : candidates) candidate.cost = value(ViewOf(context, candidate));
  const double largest = std::ranges::max_element(candidates, {}, &Candidate::cost)->cost;
  std::erase_if(candidates, [&](const Candidate& candidate) { return candidate.cost < largest; });
}

// Moves the emptier of the candidates from `done` on that have the adapter behind `done`; returns their end.
std::size_t FrontResidents(const RouteContext& context, std::vector<Candidate>& candidates, std::size_t done) {
  const std::string& adapter = context.request.adapter;
  if (adapter.empty()) return done;
  const auto first = candidates.begin() + static_cast<std::ptrdiff_t>(done);
  const auto others = std::stable_partition(first, candidates.end(), [&](const Candidate& candidate) {
    const AdapterState state = StateOf(ViewOf(context, candidate), adapter);
    return state.sent_at >= 0 || (state.listed != nullptr && state.listed->place != AdapterPlace::kDisk);
  });
  const auto end = first + std::min<std::ptrdiff_t>(others - first, kMostResidents);
  std::partial_sort(first, end, others, [&](const Candidate& a, const Candidate& b) {
    const std::int64_t left = ViewOf(context, a).load->requests(), right = ViewOf(context, b).load->requests();
    return left != right ? left < right : a.index < b.index;
  });
  return static_cast<std::size_t>(end - candidates.begin());
}

}  // namespace

void KeepHeard(const RouteContext& context, std::vector<Candidate>& candidates) {
  KeepIf(context, candidates, [](const ServerView& view) { return view.snapshot != nullptr; });
}

void KeepTwoByChance(const RouteContext& context, std::vector<Candidate>& candidates) {
  if (candidates.size() <= 2) return;
  std::uint64_t random = SplitMix64(context.random);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::span<const Candidate> rest = std::span<const Candidate>(candidates).subspan(i);
    std::swap(candidates[i], candidates[i + PositionByShare(context, rest, random)]);
    random = SplitMix64(random);
  }
  candidates.resize(2);
}

void KeepWithinBound(const RouteContext& context, std::vector<Candidate>& candidates) {
  double requests = 1, shares = 0;
  for (const Candidate& candidate : candidates) {
    requests += static_cast<double>(ViewOf(context, candidate).load->requests());
    shares += ViewOf(context, candidate).share;
  }
  KeepIf(context, candidates, [&](const ServerView& view) {
    return static_cast<double>(view.load->requests() + 1) <= std::max(1.0, kLoadBound * requests * view.share / shares);
  });
}

void KeepBestLora(const RouteContext& context, std::vector<Candidate>& candidates) {
  KeepLargest(context, candidates, [&](const ServerView& view) { return LoraAffinity(context, view); });
}

void KeepLongestPrefix(const RouteContext& context, std::vector<Candidate>& candidates) {
  if (context.request.prefix.empty()) return;
  const auto requests = [&](const Candidate& candidate) { return ViewOf(context, candidate).load->requests(); };
  const auto [least, most] = std::ranges::minmax(candidates, {}, requests);
  const auto low = static_cast<double>(requests(least)), high = static_cast<double>(requests(most));
  if (high - low > kUnevenRequests && high > kUneven * low) return;
  const double needed = kLeastMatch * static_cast<double>(context.request.prefix.size());
  KeepLargest(context, candidates, [&](const ServerView& view) {
    const auto blocks = static_cast<double>(CachedBlocks(view, context.request));
    return blocks >= needed ? blocks : 0;
  });
}

void KeepLikelyHomes(const RouteContext& context, std::vector<Candidate>& candidates) {
  const std::size_t homes =
      std::max(kLeastHomes, static_cast<std::size_t>(std::max<std::int64_t>(0, context.replicas)));
  if (candidates.size() <= homes + kStrangers) return;
  // The weights are compared as integers: as doubles, near ones would be equal.
  const std::uint64_t key = RendezvousKey(context);
  std::vector<std::pair<std::uint64_t, Candidate>> weighed;
  weighed.reserve(candidates.size());
  for (const Candidate& candidate : candidates)
    weighed.emplace_back(RendezvousWeight(key, ViewOf(context, candidate).name), candidate);
  std::partial_sort(weighed.begin(), weighed.begin() + static_cast<std::ptrdiff_t>(homes), weighed.end(),
                    [](const auto& a, const auto& b) { return a.first > b.first; });
  for (std::size_t i = 0; i < weighed.size(); ++i) candidates[i] = weighed[i].second;
  std::size_t end = FrontResidents(context, candidates, homes);
  std::uint64_t random = SplitMix64(context.random);
  for (std::size_t i = 0; i < kStrangers && end < candidates.size(); ++i, ++end) {
    std::swap(candidates[end], candidates[end + random % (candidates.size() - end)]);
    random = SplitMix64(random);
  }
  candidates.resize(end);
}

}  // namespace loramux
