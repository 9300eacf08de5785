// FastLibra's cache swapper (section 5.3): what moves between the tiers before anybody asks for it. Each 100 ms the use
// of the device is compared with two thresholds. Above the upper one memory is freed, so that running requests can
// grow: leaves of the device part go, the least valuable first. Below the lower one, what the host tier has comes back,
// the most valuable first: the roots of its paths, and adapters. Between the two nothing moves, so nothing goes to and
// fro.
//
// This class decides; it changes nothing (Scheduler::Swap carries out: scheduler_swap.cc). What goes is chosen where
// all evictions are (KvEvictionPlan and the scheduler's idle adapters); what comes is chosen here: a walk over all
// roots of the host part, a bounded piece in each call, keeps the best of them, and Choose takes from these greedily.
//
// Not thread-safe; reads no clock. Allocates nothing in the steady state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "cache/dependency_tree.h"
#include "cache/kv_eviction_plan.h"

namespace loramux {

// Shares of the device's pages.
struct SwapThresholds {
  double upper = 0.95, lower = 0.70;  // FastLibra's
};

class ProactiveSwapper {
 public:
  static constexpr TimeNs kInterval = 100 * kNsPerMs;

  // Does not own. A null tree has no keys and values. REQUIRES: 0 <= lower <= upper <= 1.
  explicit ProactiveSwapper(const DependencyTree* tree, SwapThresholds thresholds = {});

  enum class Memory : std::uint8_t { kBalanced, kBusy, kIdle };
  // Of a device of which so many pages are in use. Once an interval it may become busy or idle; balanced again, at
  // once. "Until the HBM is at a balanced status" is read as: until it is between the thresholds. Down to the lower one
  // would empty a quarter of a cache that is in use, and begin to fill it again right behind.
  Memory Observe(std::int64_t used, std::int64_t capacity, TimeNs now);
  TimeNs observed_at() const { return observed_at_; }
  // It is not balanced now, and not as it was observed last.
  bool MayMove(std::int64_t used, std::int64_t capacity) const {
    return used != observed_used_ && (PagesAbove(used, capacity) > 0 || PagesBelow(used, capacity) > 0);
  }
  // To be freed; what may come.
  std::int64_t PagesAbove(std::int64_t used, std::int64_t capacity) const;
  std::int64_t PagesBelow(std::int64_t used, std::int64_t capacity) const;
  std::int64_t UpperPages(std::int64_t capacity) const;

  // ---- What comes ----

  struct Candidate {
    double score = 0;
    NodeId node;                             // of keys and values
    AdapterGeneration adapter = kBaseModel;  // if not that one: an adapter
    std::int64_t pages = 1;
  };
  // A walk over the roots of the host part begins. Those in branches that are not `usable` (by branch; beyond its end:
  // none is) are left out: without their adapter on the device nobody could use them.
  void BeginWalk(const std::vector<bool>& usable);
  bool walking() const { return walking_; }
  // Goes on with it, for at most KvEvictionPlan::kLooksOfPiece. True: it is done.
  bool Walk(const KvEvictionPlan& scores, TimeNs now);
  // Another candidate: an adapter in the host tier.
  void Offer(const Candidate& candidate);

  struct Room {
    std::int64_t pages = 0;     // wanted: as soon as so many come, the device is balanced
    std::int64_t most = 0;      // that may be taken: the last to come may go beyond `pages`
    std::int64_t kv_pages = 0;  // of keys and values alone
    std::int64_t adapters = 0;
  };
  struct Moves {
    std::vector<NodeId> tails;  // of paths in the host tier, without a node in common
    std::vector<AdapterGeneration> adapters;
    std::int64_t kv_pages = 0, pages = 0;
    bool empty() const { return tails.empty() && adapters.empty(); }
  };
  // Of the walk that is done and what was offered since it began, in descending order of scores, as long as there is
  // room; below what comes, its children are candidates too. `usable`: as of now. Valid until the next call.
  const Moves& Choose(Room room, const std::vector<bool>& usable, const KvEvictionPlan& scores, TimeNs now);

  static constexpr std::size_t kKept = 128;  // the best of a walk: more than may come at once

 private:
  static constexpr std::size_t kNoTail = static_cast<std::size_t>(-1);
  struct Entry {
    Candidate candidate;
    std::size_t tail = kNoTail;  // in moves_: that it would continue
    bool operator<(const Entry& other) const { return WorthLess(candidate, other.candidate); }
  };
  static bool WorthLess(const Candidate& a, const Candidate& b);
  void KeepBest();
  void ForgetTwins();
  bool IsUsable(BranchId branch) const { return branch.value < usable_.size() && usable_[branch.value]; }
  bool MayCome(NodeId node) const;
  bool TakePage(const Entry& entry, const KvEvictionPlan& scores, TimeNs now);
  void PushChildren(NodeId node, std::size_t tail, const KvEvictionPlan& scores, TimeNs now);

  const DependencyTree* tree_;
  const SwapThresholds thresholds_;
  Memory memory_ = Memory::kBalanced;
  TimeNs observed_at_ = -kInterval;
  std::int64_t observed_used_ = -1;
  std::vector<bool> usable_;
  std::size_t walk_left_ = 0;  // of the tree's host roots, the first ones: still to be scored
  bool walking_ = false;
  std::vector<Candidate> best_;
  std::vector<Entry> heap_;  // of Choose
  Moves moves_;
};

}  // namespace loramux
