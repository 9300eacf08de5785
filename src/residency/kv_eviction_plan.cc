#include "residency/kv_eviction_plan.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace loramux {
namespace {

constexpr std::size_t kQueued = 1024;  // lowest scores kept in order
constexpr std::size_t kFew = 256;
constexpr std::size_t kAhead = 4;               // victims whose nodes are prefetched
constexpr TimeNs kScoresLast = 100 * kNsPerMs;  // FastLibra's monitor interval

bool GoesLater(const KvEvictionPlan::Victim& a, const KvEvictionPlan::Victim& b) { return b.Before(a); }

}  // namespace

void KvEvictionPlan::Reset(TimeNs now, bool spares_uncopied) {
  ++plan_;
  spares_uncopied_ = spares_uncopied;
  spared_.clear();
  if (marks_.size() < tree_.nodes().slots()) marks_.resize(tree_.nodes().slots());
  new_leaves_.clear();
  const bool complete = tree_.TakeNewIdleLeaves(new_leaves_);
  const auto stays = [this](NodeId node) { return tree_.tiers().HasDevicePage(node); };
  const bool carried_out = !evicted_.empty() && std::none_of(evicted_.begin(), evicted_.end(), stays);
  if (scored_in_plan_ && !carried_out) ScoreAll(now);  // the queue lacks what that plan used and evicted
  scored_in_plan_ = false;
  const auto stale = [this](const Victim& victim) {
    return !tree_.tiers().HasDevicePage(victim.node) || tree_.View(victim.node).last_use != victim.last_use;
  };
  while (!queue_.empty() && stale(queue_.back())) queue_.pop_back();
  for (const NodeId leaf : new_leaves_) {
    if (!IsIdleLeaf(leaf)) continue;
    SortIn(leaf, now);
    if (walking_) Keep(Scored(leaf, now));
  }
  if (!complete) truncated_ = true;  // the next walk finds the leaves that were not listed
  left_ = queue_.size();
  evicted_.clear();
  offered_.clear();
  evictable_ = tree_.tiers().idle_pages();
}

void KvEvictionPlan::SortIn(NodeId leaf, TimeNs now) {
  const Victim victim = Scored(leaf, now);
  if (truncated_ && (queue_.empty() || queue_.front().Before(victim))) return;  // not among the lowest
  queue_.insert(std::lower_bound(queue_.begin(), queue_.end(), victim, GoesLater), victim);
}

KvEvictionPlan::Mark KvEvictionPlan::Peek(std::uint32_t index) const {
  return index < marks_.size() && marks_[index].plan == plan_ ? marks_[index] : Mark{};
}

KvEvictionPlan::Mark& KvEvictionPlan::At(std::uint32_t index) {
  Mark& mark = marks_[index];
  if (mark.plan != plan_) mark = {.plan = plan_};
  return mark;
}

std::int64_t KvEvictionPlan::pages(BranchId branch) const {
  const bool marked = branch.value < branch_marks_.size() && branch_marks_[branch.value].plan == plan_;
  return tree_.tiers().pages(branch) - (marked ? branch_marks_[branch.value].gone : 0);
}

// ---------------------------------------------------------------- Paths

void KvEvictionPlan::Use(NodeId tail, NodeId above) {
  for (NodeId at = tail; tree_.nodes().Depth(at) > 0 && at != above; at = tree_.nodes().Parent(at)) {
    if (Users(at) == 0) --evictable_;
    ++At(at.index).users;
  }
}

void KvEvictionPlan::EndUse(NodeId tail, TimeNs now, NodeId above) {
  for (NodeId at = tail; tree_.nodes().Depth(at) > 0 && at != above; at = tree_.nodes().Parent(at)) {
    --At(at.index).users;
    if (Users(at) == 0) ++evictable_;
  }
  if (tree_.nodes().Depth(tail) > 0 && IsIdleLeaf(tail)) Offer(tail, now);
}

NodeId KvEvictionPlan::Staying(NodeId tail) const {
  while (Peek(tail.index).evicted) tail = tree_.nodes().Parent(tail);
  return tail;
}

// A parent has at least its children's users, so the walk ends at the first node with more than one user.
std::int64_t KvEvictionPlan::PagesWithOneUser(NodeId tail) const {
  std::int64_t pages = 0;
  for (NodeId at = tail; tree_.nodes().Depth(at) > 0 && Users(at) == 1; at = tree_.nodes().Parent(at)) ++pages;
  return pages;
}

std::int64_t KvEvictionPlan::UsedDepth(NodeId tail) const {
  NodeId at = tail;
  while (tree_.nodes().Depth(at) > 0 && Users(at) == 0) at = tree_.nodes().Parent(at);
  return tree_.nodes().Depth(at);
}

void KvEvictionPlan::Fetch(NodeId tail) {
  for (; !tree_.tiers().OnDevice(tail); tail = tree_.nodes().Parent(tail)) At(tail.index).fetched = true;
}

// ---------------------------------------------------------------- Victims

bool KvEvictionPlan::IsUseless(NodeId node) const {
  if (tree_.state_pages() == 0) return false;
  const TreeNodes& nodes = tree_.nodes();
  const auto goes = [&](std::uint32_t index) { return Peek(index).evicted && !nodes[index].has_host_copy(); };
  if (nodes.At(node).state > 0) {
    const std::uint32_t last = nodes.At(nodes.KvNode(node)).snapshot;
    return last == TreeNodes::kNone || goes(last);
  }
  for (NodeId child = nodes.FirstChild(node); child.generation != 0; child = nodes.NextSibling(child)) {
    if (!goes(child.index) && (nodes.At(child).state == 0 || !IsUseless(child))) return false;
  }
  return true;
}

bool KvEvictionPlan::IsIdleLeaf(NodeId node) const {
  if (!tree_.tiers().HasDevicePage(node)) return false;
  const TreeNode& record = tree_.nodes()[node.index];
  const Mark mark = Peek(node.index);
  return record.depth > 0 && record.users + mark.users == 0 && record.device_children == mark.children_gone &&
         !mark.evicted;
}

// The run of pages with about as many visits as `node`. It leads upwards, or downwards if the node is not on the
// device. An additional visit changes a frequency by at least a quarter for two minutes, so it ends the run. `top`
// becomes the last node looked at.
std::int64_t KvEvictionPlan::CountPagesOfQuery(NodeId node, const DependencyTree::NodeView& view, std::int64_t most,
                                               std::uint32_t* top) const {
  constexpr double kLike = 1.25;
  const TreeNodes& nodes = tree_.nodes();
  const bool edges = policy_.counts_edges();
  const auto visits_of = [&](const TreeNode& at) {
    return edges ? tree_.reuse().EdgeFrequency(at) : static_cast<double>(at.frequency);
  };
  const double visits = VisitsOf(view);
  std::int64_t pages = 1;
  *top = node.index;
  if (tree_.tiers().HasDevicePage(node)) {
    const double bound = kLike * visits;
    for (std::uint32_t at = nodes[node.index].parent; pages < most && nodes[at].depth > 0;
         at = nodes[at].parent, ++pages) {
      *top = at;
      if (visits_of(nodes[at]) > bound) break;
    }
  } else {
    for (std::uint32_t at = nodes[node.index].first_child; pages < most && at != TreeNode::kNone;
         at = nodes[at].first_child, ++pages) {
      if (kLike * visits_of(nodes[at]) < visits) break;
    }
  }
  return pages;
}

// A use at this very time may be incomplete yet: then nothing is remembered.
std::int64_t KvEvictionPlan::PagesOfQuery(NodeId node, const DependencyTree::NodeView& view, std::int64_t most,
                                          TimeNs now) const {
  if (most <= 1) return 1;
  const TreeNodes& nodes = tree_.nodes();
  std::uint32_t top = 0;
  if (!tree_.tiers().HasDevicePage(node)) return CountPagesOfQuery(node, view, most, &top);
  if (found_.size() <= node.index) found_.resize(nodes.slots());
  PagesFound& found = found_[node.index];
  if (found.generation == node.generation && found.most == most && nodes[found.top].last_use == found.used)
    return found.pages;
  const std::int64_t pages = CountPagesOfQuery(node, view, most, &top);
  found = {};
  if (nodes[top].last_use < now) {
    found = {.generation = node.generation,
             .top = top,
             .used = nodes[top].last_use,
             .pages = static_cast<std::int32_t>(pages),
             .most = static_cast<std::int32_t>(most)};
  }
  return pages;
}

// Its pages go one by one, and all are useless once one is gone. Keys and values can only go after their snapshot. What
// it saves is the computation behind the snapshot before it.
double KvEvictionPlan::EffortOf(NodeId snapshot) const {
  const std::int64_t before = tree_.nodes().KvDepth(tree_.BeginningBefore(snapshot));
  const std::int64_t saved = tree_.nodes().KvDepth(snapshot) - before;
  looks_ += saved;
  return static_cast<double>(saved) / static_cast<double>(tree_.state_pages());
}

KvEvictionPlan::Victim KvEvictionPlan::Scored(NodeId node, TimeNs now) const {
  const DependencyTree::NodeView view = tree_.View(node);
  if (IsUseless(node)) return {std::numeric_limits<double>::lowest(), node, view.last_use, view.wants > 0};
  const ReloadFrom reload = tree_.nodes().At(node).has_host_copy() ? ReloadFrom::kHost : ReloadFrom::kComputation;
  const bool is_snapshot = tree_.nodes().At(node).state > 0;
  const std::int64_t pages =
      is_snapshot ? tree_.state_pages() : PagesOfQuery(node, view, policy_.MostPagesOfQuery(reload), now);
  looks_ += pages;
  const double visits = VisitsOf(view);
  const EvictionCandidate candidate{
      .pages = pages,
      .effort = is_snapshot && reload == ReloadFrom::kComputation ? EffortOf(node) : 1.0,
      .last_use = view.last_use,
      .uses = visits,
      .reload = reload,
      .kind = CandidateKind::kKeysAndValues,
      .frequency = visits,
      .frequency_at = view.last_use,
      .reuse_factor =
          policy_.weighs_reuse() ? tree_.reuse().rates().Factor(view.edge_frequency, now - view.last_use) : 1.0};
  context_.now = now;
  return {policy_.Score(candidate, context_), node, view.last_use, view.wants > 0};
}

void KvEvictionPlan::Offer(NodeId node, TimeNs now) {
  offered_.push_back(Scored(node, now));
  std::push_heap(offered_.begin(), offered_.end(), LaterFirst());
}

// Whether `victim` is still an idle leaf with a current score. One that a request has wanted since is offered again as
// wanted.
bool KvEvictionPlan::Stands(const Victim& victim, TimeNs now) {
  if (!IsIdleLeaf(victim.node) || Spares(victim.node)) return false;
  const TreeNode& record = tree_.nodes()[victim.node.index];
  if (record.last_use != victim.last_use) return false;
  if (victim.wanted || record.wants == 0) return true;
  Offer(victim.node, now);
  return false;
}

void KvEvictionPlan::ScoreAll(TimeNs now) {
  BeginWalk(now);
  Walk(std::numeric_limits<std::int64_t>::max(), now);
  EndWalk();
}

void KvEvictionPlan::BeginWalk(TimeNs now) {
  walk_.clear();
  walk_.reserve(2 * kQueued);
  walk_bound_.reset();
  walk_oldest_use_.reset();
  walk_left_ = tree_.tiers().IdleLeaves().size();
  walking_ = true;
  scored_at_ = now;
}

// Loads what the walk will need of the leaves that it comes to soon, which are the last of `left`.
void KvEvictionPlan::PrefetchForWalk(std::span<const std::uint32_t> left) const {
  constexpr std::size_t kSoon = 4, kLater = 8;
  if (left.size() <= kLater) return;
  const std::uint32_t later = left[left.size() - 1 - kLater], soon = left[left.size() - 1 - kSoon];
  tree_.nodes().Prefetch(later);
  if (later < found_.size()) __builtin_prefetch(&found_[later]);
  if (soon < found_.size() && found_[soon].top < tree_.nodes().slots()) tree_.nodes().Prefetch(found_[soon].top);
}

// Walks from the last leaf to the first. Leaves that appear meanwhile are appended (Reset keeps them). A leaf that
// disappears is replaced by the last one, which is already scored. So no leaf is missed; one that is scored twice is
// skipped later (Stands).
void KvEvictionPlan::Walk(std::int64_t most_looks, TimeNs now) {
  const std::span<const std::uint32_t> all = tree_.tiers().IdleLeaves();
  walk_left_ = std::min(walk_left_, all.size());
  while (most_looks > 0 && walk_left_ > 0) {
    const std::int64_t before = looks_;
    PrefetchForWalk(all.first(walk_left_));
    const NodeId node = tree_.nodes().IdOf(all[--walk_left_]);
    if (IsIdleLeaf(node)) Keep(Scored(node, now));
    most_looks -= kLooksOfNode + looks_ - before;
  }
}

void KvEvictionPlan::Keep(const Victim& victim) {
  walk_oldest_use_ = std::min(walk_oldest_use_.value_or(victim.last_use), victim.last_use);
  if (walk_bound_ && !victim.Before(*walk_bound_)) return;
  walk_.push_back(victim);
  if (walk_.size() == 2 * kQueued) KeepLowest();
}

void KvEvictionPlan::KeepLowest() {
  if (walk_.size() <= kQueued) return;
  const auto end = walk_.begin() + kQueued;
  std::nth_element(walk_.begin(), end, walk_.end(), [](const Victim& a, const Victim& b) { return a.Before(b); });
  walk_bound_ = *end;
  walk_.erase(end, walk_.end());
}

void KvEvictionPlan::EndWalk() {
  KeepLowest();
  truncated_ = walk_bound_.has_value();
  oldest_use_ = walk_oldest_use_;
  queue_.swap(walk_);
  std::sort(queue_.begin(), queue_.end(), GoesLater);
  left_ = queue_.size();
  walking_ = false;
}

std::optional<KvEvictionPlan::Victim> KvEvictionPlan::Next(TimeNs now) {
  if (evictable_ == 0) return std::nullopt;
  for (bool scored = false;; scored = true) {
    if (left_ > kAhead) {  // the victim of a later call
      const NodeId later = queue_[left_ - 1 - kAhead].node;
      tree_.nodes().Prefetch(later.index);
      __builtin_prefetch(&marks_[later.index], 1);
    }
    while (left_ > 0 && !Stands(queue_[left_ - 1], now)) --left_;
    while (!offered_.empty() && (!IsIdleLeaf(offered_.front().node) || Spares(offered_.front().node))) {
      if (IsIdleLeaf(offered_.front().node)) spared_.push_back(offered_.front());
      std::pop_heap(offered_.begin(), offered_.end(), LaterFirst());
      offered_.pop_back();
    }
    if (left_ > 0 && (offered_.empty() || queue_[left_ - 1].Before(offered_.front()))) return queue_[left_ - 1];
    // To score all leaves would hardly find one with a copy: copies are made of those that go first.
    if (offered_.empty() && spares_uncopied_) return std::nullopt;
    // Once the queue is exhausted, an offered leaf may not have the lowest score of all.
    if (left_ > 0 || scored || spares_uncopied_ || (!truncated_ && !offered_.empty())) break;
    ScoreAll(now);
    scored_in_plan_ = true;
  }
  CHECK(!offered_.empty());  // every idle page has an idle leaf below it
  return offered_.front();
}

void KvEvictionPlan::SpareUncopied(bool spares) {
  if (spares_uncopied_ && !spares) {
    left_ = queue_.size();  // those that were passed over; what the plan has evicted since does not stand
    for (const Victim& victim : spared_) offered_.push_back(victim);
    std::make_heap(offered_.begin(), offered_.end(), LaterFirst());
    spared_.clear();
  }
  spares_uncopied_ = spares;
}

void KvEvictionPlan::Evict(const Victim& victim, TimeNs now) {
  CHECK(IsIdleLeaf(victim.node));
  At(victim.node.index).evicted = true;
  evicted_.push_back(victim.node);
  --evictable_;
  const std::uint32_t branch = tree_.View(victim.node).branch.value;
  if (branch >= branch_marks_.size()) branch_marks_.resize(branch + 1);
  if (branch_marks_[branch].plan != plan_) branch_marks_[branch] = {.plan = plan_};
  ++branch_marks_[branch].gone;
  const NodeId parent = tree_.nodes().Parent(victim.node);
  ++At(parent.index).children_gone;
  if (!IsIdleLeaf(parent)) return;
  // The likely next victim: most paths are evicted from their end upwards.
  __builtin_prefetch(&marks_[tree_.nodes().PrefetchParent(parent)], 1);
  Offer(parent, now);
}

void KvEvictionPlan::Refresh(TimeNs now) {
  Reset(now);
  const bool due = (truncated_ && queue_.size() < kFew) || (!queue_.empty() && now - scored_at_ >= kScoresLast);
  if (!walking_ && !due) return;
  if (!walking_) BeginWalk(now);
  Walk(kLooksOfPiece, now);
  if (walk_left_ == 0) EndWalk();
}

}  // namespace loramux
