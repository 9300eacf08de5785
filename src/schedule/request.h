// A request as the scheduler sees it: tokens, pages, progress. How a token is chosen is no business of this room.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "cache/dependency_tree.h"
#include "memory/page_pool.h"

namespace loramux {

// A slot of TenantCounters: valid while the tenant has requests.
using TenantId = std::uint32_t;

enum class RequestState : std::uint8_t { kWaiting, kRunning, kFinished };

// Owned by the engine; the scheduler holds pointers from Add to Remove. Token `t` is at position `t`.
// Planning reads each running request in every step: what it needs of one is the first cache line. Of those that wait
// within lookahead it reads the second one too.
struct alignas(64) Request {
  static constexpr std::int32_t kMostFetches = 4;

  RequestId id;
  AdapterGeneration adapter = kBaseModel;
  TenantId tenant = 0;            // kept by TenantCounters
  std::int64_t computed = 0;      // positions whose keys and values are in `pages`
  std::vector<TokenId> tokens;    // prompt, then what was generated; reserved to max_total_tokens
  std::vector<PageHandle> pages;  // of the device pool; cover at least `computed` positions. The first
                                  // `tree_pages` are the dependency tree's, the others are its own.

  std::int32_t lane = 0;  // of the waiting queue, and
  // its place there: set by the order of the queue when it begins to wait (queue_order.h)
  TimeNs due = 0;
  // positions that the tenant's counter was charged for; kept by TenantCounters
  std::int64_t charged = 0;
  std::int32_t prompt_tokens = 0;
  std::int32_t predicted_output = 0;  // tokens, guessed when it came in
  std::int32_t adapter_tokens = 0;    // its adapter's memory in tokens of keys and values
  std::int32_t max_total_tokens = 0;  // prompt and output together
  RequestState state = RequestState::kWaiting;
  std::int32_t preemptions = 0;
  TimeNs arrival = 0;
  std::int32_t priority = 0;     // the client's: -10 (soonest) to 10
  TimeNs deadline = 0;           // by when the client wants it to begin; 0: no wish
  std::int32_t length_hint = 0;  // what somebody outside the engine knows of its output; 0: nothing
  // given up by the order of the queue: its objective would cost others theirs
  bool late = false;
  // to compute before its first token, while it waits for that in an ObjectiveOrder; else -1
  std::int32_t work_tokens = -1;
  bool squashed = false;  // it gave way to one that it had overtaken: it does not overtake again
  // the older one that memory had no room for when this one was let past; 0: none
  RequestId overtook;
  TimeNs first_scheduled = -1;            // -1: not yet
  std::vector<std::uint32_t> page_table;  // the pages' indices, for the kernels
  std::string tenant_name;                // who pays for it (fairness.h)

  // In the dependency tree, if there is one; kept by the scheduler. While it runs, the path to `tail` is locked for it;
  // while it waits, `tail` is where it would begin (and may be gone).
  BranchId branch;
  NodeId tail;
  // from admission until its first step has ended: a child of `tail` that is locked too
  std::optional<NodeId> copied_from;
  NodeId found;  // the deepest node that was found for its tokens; may be gone
  // from the host tier, since it waits; after kMostFetches it takes what is there
  std::int32_t fetches = 0;
  bool fetched_ahead = false;  // the same, before it had a seat
  std::int32_t tree_pages = 0;
  std::int32_t fetched_tokens = 0;  // that it had fetched from the host tier while it waited
  std::int32_t cached_tokens = -1;  // of the prompt, found when it was first admitted; -1: not yet

  std::int64_t uncomputed() const { return static_cast<std::int64_t>(tokens.size()) - computed; }
  std::span<const TokenId> prompt() const { return {tokens.data(), static_cast<std::size_t>(prompt_tokens)}; }
  std::span<const TokenId> generated() const {
    return {tokens.data() + prompt_tokens, tokens.size() - static_cast<std::size_t>(prompt_tokens)};
  }
};

}  // namespace loramux
