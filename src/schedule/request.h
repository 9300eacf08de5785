// A request as the scheduler sees it: tokens, pages, progress. Sampling is outside this module.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "memory/page_pool.h"
#include "prefix/dependency_tree.h"

namespace loramux {

// A slot of TenantCounters. Valid while the tenant has requests.
using TenantId = std::uint32_t;

// kWaiting: in the queue, holds no pages. kRunning: admitted, holds pages. kFinished: removed from the scheduler.
enum class RequestState : std::uint8_t { kWaiting, kRunning, kFinished };

// One request. The engine owns it; the scheduler holds a pointer from Scheduler::Add to Scheduler::Remove.
// `tokens[t]` is at position `t`.
//
// Layout: planning reads every running request in every step, and needs only the first cache line of each. Of waiting
// requests within lookahead it also reads the second one.
struct alignas(64) Request {
  // Fetches from the host tier after which the request begins with what the device has.
  static constexpr std::int32_t kMostFetches = 4;
  // The value of reusable_tokens that means no limit.
  static constexpr std::int64_t kAllTokens = std::numeric_limits<std::int64_t>::max();

  RequestId id;  // ascending in the order of arrival
  AdapterGeneration adapter = kBaseModel;
  TenantId tenant = 0;            // set by TenantCounters
  std::int64_t computed = 0;      // positions with keys and values in `pages`
  std::vector<TokenId> tokens;    // the prompt, then the output; capacity reserved for max_total_tokens
  std::vector<PageHandle> pages;  // on the device; cover at least `computed` positions. The dependency tree owns
                                  // the first `tree_pages` of them, the request the others.

  // Lane of the waiting queue. Set when the request is placed in the queue (PlaceInQueue).
  std::int32_t lane = 0;
  // Tokens of its lane's quota that it takes while it runs. Set on arrival (QueueOrder::QuotaTokens).
  std::int32_t quota_tokens = 0;
  // Place within the lane: the request with the earliest due time comes first. Set by PlaceInQueue.
  TimeNs due = 0;
  std::int64_t charged = 0;           // positions that the tenant was charged for; kept by TenantCounters
  std::int32_t prompt_tokens = 0;     // length of the prompt in tokens
  std::int32_t predicted_output = 0;  // output tokens, predicted on arrival
  std::int32_t adapter_tokens = 0;    // size of the adapter, in tokens of keys and values
  std::int32_t max_total_tokens = 0;  // bound on prompt and output together
  RequestState state = RequestState::kWaiting;
  std::int32_t preemptions = 0;  // times that it lost its pages: preempted, or with another adapter
  TimeNs arrival = 0;
  std::int32_t priority = 0;     // from the client: -10 (soonest) to 10
  TimeNs deadline = 0;           // time by which the client wants it to begin; 0: none
  std::int32_t length_hint = 0;  // output tokens predicted outside the engine; 0: no hint
  // The queue order gave it up: to serve it within its objective would make other requests miss theirs.
  bool late = false;
  // Tokens to compute before the first output token. -1 unless it waits in an ObjectiveOrder.
  std::int32_t work_tokens = -1;
  std::int64_t computed_before = 0;       // positions that it had computed when it was preempted last
  TimeNs first_scheduled = -1;            // first admission; -1: not admitted yet
  TimeNs adapter_wait = 0;                // the part of the time until then in which its adapter was not on the device
  std::vector<std::uint32_t> page_table;  // indices of `states`, then of `pages`, for the kernels
  std::string tenant_name;                // the tenant that is charged (fairness.h)

  // Only requests of one sharing domain find each other's pages (DependencyTree::HoldTop). Set before Scheduler::Add.
  std::string prefix_domain;
  // Place in the dependency tree, if there is one. Kept by the scheduler.
  BranchId branch;
  NodeId top;  // where its path begins; held until Scheduler::Remove
  // While the request runs: the last node of its path, which it uses. While it waits: the node after which it
  // would begin, which may no longer exist.
  NodeId tail;
  // The child of `tail` of which the page is copied for this request, or the last page of the snapshot below `tail`,
  // from which its states are. In use from admission, or from the plan that took the snapshot, to the end of that step.
  std::optional<NodeId> copied_from;
  // By FindTail: the deepest node for its tokens, and the one on the path to it after which it may begin, which is the
  // same without states. They may no longer exist.
  NodeId deepest, found;
  std::uint64_t found_at = 0;  // TreeNodes::snapshot_changes when `found` was
  // Leading tokens on which its adapter does not act, as an activated LoRA before its invocation tokens: their keys and
  // values are the base model's, and the tree has them in the base model's branch. Those after them depend on this
  // place too and stay with the request. 0: the adapter acts on all. Below prompt_tokens.
  std::int32_t base_tokens = 0;
  // It ends on the version of its adapter with which it began (GenerationRequest::keeps_version).
  bool keeps_version = false;
  // Leading tokens whose keys and values it may take from the tree. Fewer than all while the log-probabilities of its
  // prompt, or the mean of its hidden states, are wanted and not known yet: they come from the computation of these
  // tokens.
  std::int64_t reusable_tokens = kAllTokens;
  // Guesses of the tokens that follow `tokens`, in order: a step may compute them too, to find out whether they do. So
  // few that the request does not end before the last of them.
  std::vector<TokenId> draft;
  // Fetches from the host tier since it began to wait. At most kMostFetches.
  std::int32_t fetches = 0;
  bool fetched_ahead = false;   // history was fetched for it before it had a seat
  std::int32_t tree_pages = 0;  // pages at the front of `pages` that the dependency tree owns
  // The request's own pages with the states of recurrent layers after `computed` tokens; none without such layers.
  std::vector<PageHandle> states;
  NodeId snapshot;                    // the last page of the deepest snapshot on its path; may no longer exist
  std::int32_t snapshot_at = 0;       // tokens before that snapshot; 0: there was none
  std::int32_t branches_at = 0;       // tokens, in full pages, that it has in common with what the tree has
  std::int32_t fetched_tokens = 0;    // tokens fetched from the host tier while it waited
  std::int32_t found_on_arrival = 0;  // prompt tokens that the cache had, in either tier, when it arrived
  std::int32_t cached_tokens = -1;    // prompt tokens found in the cache at its first admission; -1: not admitted yet

  // Tokens that are known but not computed yet.
  std::int64_t uncomputed() const { return static_cast<std::int64_t>(tokens.size()) - computed; }
  // Pages that are the request's own.
  std::int64_t own_pages() const { return static_cast<std::int64_t>(states.size() + pages.size()) - tree_pages; }
  // Tokens whose keys and values may come from the tree. The last token's never do, because its logits are needed.
  std::int64_t most_reused() const {
    return std::min({static_cast<std::int64_t>(tokens.size()) - 1, reusable_tokens, treelike_tokens()});
  }
  // Leading tokens whose keys and values may be in the tree.
  std::int64_t treelike_tokens() const { return base_tokens > 0 ? base_tokens : kAllTokens; }
  // How many of the next `count` tokens from `position` on one step may compute: the adapter acts on all, or on none.
  std::int64_t AlikeFrom(std::int64_t position, std::int64_t count) const {
    return position < base_tokens ? std::min(count, base_tokens - position) : count;
  }
  std::span<const TokenId> prompt() const { return {tokens.data(), static_cast<std::size_t>(prompt_tokens)}; }
  // Output tokens so far.
  std::span<const TokenId> generated() const {
    return {tokens.data() + prompt_tokens, tokens.size() - static_cast<std::size_t>(prompt_tokens)};
  }
};

}  // namespace loramux
