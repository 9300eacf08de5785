// FastLibra's cache swapper (section 5.3): moves between the tiers that no request has asked for yet. Every 100
// milliseconds (SwapThresholds::interval) it compares the use of the device with two thresholds:
// - Above the upper threshold it frees memory so that running requests can grow. Leaves of the device part are evicted,
//   the least valuable first.
// - Below the lower threshold it brings back the most valuable content of the host tier: roots of the host part, and
//   adapters.
// - Between the two nothing moves, so nothing oscillates between the tiers.
//
// This class decides and changes nothing; BackgroundPlanner makes a plan of it, which Scheduler commits. Victims are
// chosen in the same place as for every other eviction (KvEvictionPlan and the scheduler's idle adapters). Content to
// bring back is chosen here: a walk over all roots of the host part, a bounded piece in each call, keeps the best ones,
// and Choose takes from these greedily.
//
// Not thread-safe; reads no clock. Allocates nothing in the steady state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "prefix/dependency_tree.h"
#include "residency/kv_eviction_plan.h"
#include "residency/moves.h"
#include "worth/cache_regime.h"

namespace loramux {

// See the top of this file.
class ProactiveSwapper {
 public:
  // Does not own the tree. REQUIRES: 0 <= lower <= upper <= 1, interval > 0.
  explicit ProactiveSwapper(const DependencyTree& tree, SwapThresholds thresholds = {});

  // State of the device's memory: between the thresholds, above the upper one, below the lower one.
  enum class Memory : std::uint8_t { kBalanced, kBusy, kIdle };
  // Updates and returns the state of a device with `used` of `capacity` pages in use. It becomes busy or idle only once
  // an interval, but balanced at once. FastLibra's "until the HBM is at a balanced status" is read as: until the use
  // lies between the thresholds. Freeing down to the lower threshold would empty a quarter of a cache in use, and
  // refilling would begin right away.
  Memory Observe(std::int64_t used, std::int64_t capacity, TimeNs now);
  // Time between two observations.
  TimeNs interval() const { return thresholds_.interval; }
  // The time of the last observation.
  TimeNs observed_at() const { return observed_at_; }
  // Whether memory is outside the thresholds and its use differs from the last observation.
  bool MayMove(std::int64_t used, std::int64_t capacity) const {
    return used != observed_used_ && (PagesAbove(used, capacity) > 0 || PagesBelow(used, capacity) > 0);
  }
  // Pages above the upper threshold, to be freed.
  std::int64_t PagesAbove(std::int64_t used, std::int64_t capacity) const;
  // Pages below the lower threshold, which may be filled.
  std::int64_t PagesBelow(std::int64_t used, std::int64_t capacity) const;
  // The upper threshold in pages.
  std::int64_t UpperPages(std::int64_t capacity) const;

  // ---- Swapping in ----

  // A KV page or an adapter in the host tier that may be brought to the device.
  struct Candidate {
    double score = 0;
    NodeId node;                             // the KV page; none if it is an adapter
    AdapterGeneration adapter = kBaseModel;  // kBaseModel: the candidate is a KV page
    std::int64_t pages = 1;
    std::uint64_t tie = 0;  // set by Offer: of adapters with equal scores the greatest comes first
  };
  // Begins a walk over the roots of the host part. Skips branches that are not `usable` (indexed by branch; not usable
  // beyond its end): without their adapter on the device no request could use them.
  void BeginWalk(const std::vector<bool>& usable);
  // Whether a walk is in progress.
  bool walking() const { return walking_; }
  // Continues the walk for at most KvEvictionPlan::kLooksOfPiece looks. Returns true when it is done.
  bool Walk(const KvEvictionPlan& scores, TimeNs now);
  // Adds a candidate that the walk does not find: an adapter in the host tier.
  void Offer(const Candidate& candidate);

  // Limits of one Choose.
  struct Room {
    std::int64_t pages = 0;     // wanted: with these the device is balanced
    std::int64_t most = 0;      // hard limit: the last candidate taken may exceed `pages`, but not this
    std::int64_t kv_pages = 0;  // limit for KV pages alone
    std::int64_t adapters = 0;
  };
  // Chooses from the candidates of the finished walk and those offered since it began, in descending order of scores,
  // while there is `room`. The children of a chosen node become candidates too. `usable`: as in BeginWalk, as of now.
  // Returns what to bring to the device (MoveReason::kSwapIn): adapters, and paths of which no two share a node. The
  // result is valid until the next call.
  const Moves& Choose(Room room, const std::vector<bool>& usable, const KvEvictionPlan& scores, TimeNs now);

  static constexpr std::size_t kKept = 128;  // candidates that a walk keeps: more than one Choose can take

 private:
  static constexpr std::size_t kNoTail = static_cast<std::size_t>(-1);
  // A candidate in Choose.
  struct Entry {
    Candidate candidate;
    std::size_t tail = kNoTail;  // index in moves_ of the path that it would continue
    bool operator<(const Entry& other) const { return WorthLess(candidate, other.candidate); }
  };
  // Whether `a` comes after `b`.
  static bool WorthLess(const Candidate& a, const Candidate& b);
  // Keeps the kKept best candidates.
  void KeepBest();
  // Removes candidates that are listed twice.
  void ForgetTwins();
  bool IsUsable(BranchId branch) const { return branch.value < usable_.size() && usable_[branch.value]; }
  // Whether the node can still be fetched.
  bool MayCome(NodeId node) const;
  // Adds a move to the device.
  void Bring(ItemId item, std::int64_t pages);
  // Adds the candidate's page to moves_. Returns false if it cannot come.
  bool TakePage(const Entry& entry, const KvEvictionPlan& scores, TimeNs now);
  // Adds the children of a chosen node to heap_.
  void PushChildren(NodeId node, std::size_t tail, const KvEvictionPlan& scores, TimeNs now);

  const DependencyTree& tree_;
  const SwapThresholds thresholds_;
  Memory memory_ = Memory::kBalanced;
  TimeNs observed_at_;
  std::int64_t observed_used_ = -1;
  std::vector<bool> usable_;
  std::size_t walk_left_ = 0;  // host roots still to be scored: the first ones of the tree's list
  bool walking_ = false;
  std::vector<Candidate> best_;
  std::vector<Entry> heap_;  // used by Choose
  Moves moves_;
};

}  // namespace loramux
