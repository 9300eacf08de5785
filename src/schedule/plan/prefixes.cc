#include "schedule/plan/prefixes.h"

#include <algorithm>

namespace loramux {

void Prefixes::LookAtFetches(TimeNs now, bool alone) {
  usable_fetches_.clear();
  if (view_.options.state_pages > 0) return;  // states are copied before the first layer
  for (const KvTiers::Job& fetch : view_.tiers.fetches()) {
    if (!fetch.failed && LeadSuffices(*fetch.progress, now - fetch.begun, view_.step_floor.value(), alone))
      usable_fetches_.push_back(fetch.id);
  }
}

bool Prefixes::ArrivesInTime(NodeId node) const {
  const KvTiers::Job* fetch = view_.tiers.FetchOf(node);
  return fetch != nullptr &&
         std::find(usable_fetches_.begin(), usable_fetches_.end(), fetch->id) != usable_fetches_.end();
}

// A fetch that covers the whole path and is usable already does not count.
bool Prefixes::IsFetching(const Request& request) const {
  if (!view_.tree.nodes().Exists(request.found)) return false;
  NodeId at = request.found;
  for (; !view_.tree.tiers().OnDevice(at); at = view_.tree.nodes().Parent(at)) {
    if (view_.tree.nodes().At(at).moving()) return at != request.found || !IsUsable(at);
  }
  return false;
}

NodeId Prefixes::DeviceTail(NodeId tail) const {
  while (!IsUsable(tail)) tail = view_.tree.nodes().Parent(tail);
  return tail;
}

NodeId Prefixes::Beginning(NodeId found) const {
  const DependencyTree& tree = view_.tree;
  while (Depth(found) > 0 && (!tree.tiers().OnDevice(found) || room_.history().Staying(found) != found))
    found = tree.BeginningBefore(found);
  return found;
}

// A page that this plan evicts is not copied.
DependencyTree::InPage Prefixes::FindInPage(const Request& request, NodeId tail) const {
  const auto begin = static_cast<std::ptrdiff_t>(Depth(tail) * view_.options.page_tokens);
  const std::span<const TokenId> next(request.tokens.begin() + begin,
                                      request.tokens.begin() + static_cast<std::ptrdiff_t>(request.most_reused()));
  const DependencyTree::InPage found = view_.tree.index().MatchInPage(tail, next);
  return found.tokens > 0 && room_.history().Staying(found.node) == found.node ? found : DependencyTree::InPage{};
}

std::int64_t Prefixes::PagesFreedBy(const Request& request) const {
  return request.own_pages() + room_.history().PagesWithOneUser(request.tail);
}

}  // namespace loramux
