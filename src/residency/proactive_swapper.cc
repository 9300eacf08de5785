#include "residency/proactive_swapper.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/check.h"
#include "base/prng.h"

namespace loramux {
namespace {

// Children examined when a node is chosen; a system prompt may have thousands.
constexpr int kChildren = 32;

std::int64_t Share(double share, std::int64_t capacity) { return std::llround(share * static_cast<double>(capacity)); }

}  // namespace

ProactiveSwapper::ProactiveSwapper(const DependencyTree& tree, SwapThresholds thresholds)
    : tree_(tree), thresholds_(thresholds), observed_at_(-thresholds.interval) {
  CHECK(0 <= thresholds.lower && thresholds.lower <= thresholds.upper && thresholds.upper <= 1);
  CHECK_GT(thresholds.interval, 0);
  best_.reserve(2 * kKept);
}

std::int64_t ProactiveSwapper::PagesAbove(std::int64_t used, std::int64_t capacity) const {
  return std::max<std::int64_t>(0, used - UpperPages(capacity));
}

std::int64_t ProactiveSwapper::PagesBelow(std::int64_t used, std::int64_t capacity) const {
  return std::max<std::int64_t>(0, Share(thresholds_.lower, capacity) - used);
}

std::int64_t ProactiveSwapper::UpperPages(std::int64_t capacity) const { return Share(thresholds_.upper, capacity); }

ProactiveSwapper::Memory ProactiveSwapper::Observe(std::int64_t used, std::int64_t capacity, TimeNs now) {
  const bool above = PagesAbove(used, capacity) > 0, below = PagesBelow(used, capacity) > 0;
  if (now - observed_at_ >= thresholds_.interval) {
    observed_at_ = now;
    observed_used_ = used;
    memory_ = above ? Memory::kBusy : below ? Memory::kIdle : Memory::kBalanced;
  } else if ((memory_ == Memory::kBusy && !above) || (memory_ == Memory::kIdle && !below)) {
    memory_ = Memory::kBalanced;
  }
  return memory_;
}

// ---------------------------------------------------------------- Swapping in

// At equal scores adapters come before KV pages, in line with the order of eviction (EvictionPolicy). Adapters that
// were never used all score alike. Their numbers may tell how popular they are (a simulation's are in that order), so
// the draw decides among them.
bool ProactiveSwapper::WorthLess(const Candidate& a, const Candidate& b) {
  if (a.score != b.score) return a.score < b.score;
  if ((a.adapter == kBaseModel) != (b.adapter == kBaseModel)) return a.adapter == kBaseModel;
  if (a.tie != b.tie) return a.tie < b.tie;
  return a.adapter != b.adapter ? a.adapter > b.adapter : a.node.index > b.node.index;
}

void ProactiveSwapper::BeginWalk(const std::vector<bool>& usable) {
  usable_ = usable;
  best_.clear();
  walk_left_ = tree_.tiers().HostRoots().size();
  walking_ = true;
}

// Walks from the last root to the first. A root that disappears is replaced by the last one, which is already scored.
// Roots that appear meanwhile are left to the next walk.
bool ProactiveSwapper::Walk(const KvEvictionPlan& scores, TimeNs now) {
  CHECK(walking_);
  const std::span<const std::uint32_t> roots = tree_.tiers().HostRoots();
  walk_left_ = std::min(walk_left_, roots.size());
  for (std::int64_t left = KvEvictionPlan::kLooksOfPiece; left > 0 && walk_left_ > 0;) {
    const std::int64_t before = scores.looks();
    const NodeId node = tree_.nodes().IdOf(roots[--walk_left_]);
    if (IsUsable(tree_.View(node).branch)) Offer({.score = scores.Score(node, now), .node = node});
    left -= KvEvictionPlan::kLooksOfNode + scores.looks() - before;
  }
  walking_ = walk_left_ > 0;
  return !walking_;
}

void ProactiveSwapper::Offer(const Candidate& candidate) {
  best_.push_back(candidate);
  if (candidate.adapter != kBaseModel)
    best_.back().tie = SplitMix64(SplitMix64(thresholds_.draw) ^ candidate.adapter.value);
  if (best_.size() == 2 * kKept) KeepBest();
}

void ProactiveSwapper::KeepBest() {
  const auto better = [](const Candidate& a, const Candidate& b) { return WorthLess(b, a); };
  std::nth_element(best_.begin(), best_.begin() + kKept, best_.end(), better);
  best_.resize(kKept);
}

// Between two calls of a walk, the last root may take the place of one that disappeared; the walk then sees it twice.
void ProactiveSwapper::ForgetTwins() {
  const auto key = [](const Candidate& c) { return std::tuple(c.adapter, c.node.index, c.node.generation); };
  std::sort(best_.begin(), best_.end(), [&](const Candidate& a, const Candidate& b) { return key(a) < key(b); });
  const auto twin = [&](const Candidate& a, const Candidate& b) { return key(a) == key(b); };
  best_.erase(std::unique(best_.begin(), best_.end(), twin), best_.end());
}

// The node may have been fetched or removed since it became a candidate.
bool ProactiveSwapper::MayCome(NodeId node) const {
  if (!tree_.nodes().Exists(node) || tree_.tiers().HasDevicePage(node) || tree_.nodes().At(node).moving() ||
      !tree_.nodes().At(node).has_host_copy())
    return false;
  return IsUsable(tree_.View(node).branch);
}

const Moves& ProactiveSwapper::Choose(Room room, const std::vector<bool>& usable, const KvEvictionPlan& scores,
                                      TimeNs now) {
  usable_ = usable;
  moves_.clear();
  std::int64_t pages = 0, kv_pages = 0, adapters = 0;
  heap_.clear();
  ForgetTwins();
  for (const Candidate& candidate : best_) heap_.push_back({candidate});
  best_.clear();
  std::make_heap(heap_.begin(), heap_.end());
  while (!heap_.empty() && pages < room.pages) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Entry entry = heap_.back();
    heap_.pop_back();
    const Candidate& candidate = entry.candidate;
    if (pages + candidate.pages > room.most) continue;
    if (candidate.adapter != kBaseModel) {
      if (adapters >= room.adapters) continue;
      ++adapters;
      Bring(candidate.adapter, candidate.pages);
    } else {
      if (kv_pages >= room.kv_pages || !TakePage(entry, scores, now)) continue;
      ++kv_pages;
    }
    pages += candidate.pages;
  }
  return moves_;
}

void ProactiveSwapper::Bring(ItemId item, std::int64_t pages) {
  moves_.push_back(
      {.item = item, .from = Tier::kHost, .to = Tier::kDevice, .why = MoveReason::kSwapIn, .pages = pages});
}

// A path continues with its best child only; other descendants wait for a later job.
bool ProactiveSwapper::TakePage(const Entry& entry, const KvEvictionPlan& scores, TimeNs now) {
  const NodeId node = entry.candidate.node;
  if (!MayCome(node)) return false;
  std::size_t tail = entry.tail;
  if (tail == kNoTail) {
    if (!tree_.tiers().OnDevice(tree_.nodes().Parent(node))) return false;
    tail = moves_.size();
    Bring(node, 1);
  } else {
    if (moves_[tail].item.node != tree_.nodes().Parent(node)) return false;  // a sibling was better
    moves_[tail].item = node;
    ++moves_[tail].pages;
  }
  PushChildren(node, tail, scores, now);
  return true;
}

void ProactiveSwapper::PushChildren(NodeId node, std::size_t tail, const KvEvictionPlan& scores, TimeNs now) {
  NodeId child = tree_.nodes().FirstChild(node);
  for (int i = 0; i < kChildren && child.generation != 0; ++i, child = tree_.nodes().NextSibling(child)) {
    if (!MayCome(child)) continue;
    heap_.push_back({{.score = scores.Score(child, now), .node = child}, tail});
    std::push_heap(heap_.begin(), heap_.end());
  }
}

}  // namespace loramux
