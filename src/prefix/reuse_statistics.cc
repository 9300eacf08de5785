#include "prefix/reuse_statistics.h"

#include <cmath>

#include "base/check.h"

namespace loramux {

ReuseStatistics::ReuseStatistics(TreeNodes* nodes, TimeNs half_life, bool by_edge)
    : nodes_(nodes), forget_per_ns_(1.0 / static_cast<double>(half_life)), by_edge_(by_edge) {
  CHECK_GT(half_life, 0);
}

// ---------------------------------------------------------------- Use

void ReuseStatistics::ComputeLeftAfter(TimeNs idle) {
  left_after_ = idle;
  left_ = std::exp2(static_cast<float>(-static_cast<double>(std::max<TimeNs>(0, idle)) * forget_per_ns_));
}

void ReuseStatistics::EndRest(TreeNode& node, TimeNs now) {
  rates_.SawVisit(EdgeFrequency(node), now - node.last_use);
  node.resting = false;
}

// A page that continues an edge has its visits.
void ReuseStatistics::VisitInserted(std::uint32_t index, TimeNs now) {
  Visit(index, now);
  TreeNode& node = (*nodes_)[index];
  const float before = nodes_->IsOnlyChild(index) ? (*nodes_)[node.parent].edge_frequency : 0.0f;
  node.edge_frequency = std::max(node.frequency, before);
}

void ReuseStatistics::CountEdges(std::uint32_t tail) {
  if (!by_edge_) return;
  TreeNodes& nodes = *nodes_;
  for (std::uint32_t begin = tail; nodes[begin].depth > 0;) {
    std::uint32_t top = begin;
    while (nodes[top].depth > 1 && nodes.IsOnlyChild(top)) top = nodes[top].parent;
    const std::uint32_t end = nodes[top].parent;
    for (const float visits = nodes[top].frequency; begin != end; begin = nodes[begin].parent)
      nodes[begin].edge_frequency = visits;
  }
}

void ReuseStatistics::Unwant(NodeId node) {
  if (!nodes_->Exists(node)) return;
  CHECK_GT(nodes_->At(node).wants, 0);
  --nodes_->At(node).wants;
}

// ---------------------------------------------------------------- Host worth

void ReuseStatistics::set_host_bonus(TimeNs per_doubling) {
  host_bonus_ = per_doubling;
  for (std::size_t i = 0; i < bonuses_.size(); ++i)
    bonuses_[i] = static_cast<double>(per_doubling) * static_cast<double>(i);
}

// Between the numbers of visits that have a bonus, and beyond them, the bonus is linear in the doublings.
TimeNs ReuseStatistics::BonusOf(double frequency) const {
  constexpr double kFewestVisits = 1.0 / 64;  // lower bound of the logarithm's argument
  const double doublings = std::log2(std::max(kFewestVisits, frequency));
  const double whole = std::clamp(std::floor(doublings), 0.0, static_cast<double>(bonuses_.size() - 2));
  const auto at = static_cast<std::size_t>(whole);
  return static_cast<TimeNs>(bonuses_[at] + (doublings - whole) * (bonuses_[at + 1] - bonuses_[at]));
}

// Content leaves the host tier at about twice the mean idle time. There a page with a single visit is about to go, and
// those with more visits are compared with it.
void ReuseStatistics::LearnBonuses(double remembered_s) {
  if (host_bonus_ == 0) return;
  const double most_s = static_cast<double>(host_bonus_) / kNsPerSecond;
  bonuses_ = rates_.Bonuses(2 * mean_idle_s_, remembered_s, most_s);
  for (double& bonus : bonuses_) bonus *= kNsPerSecond;
}

// ---------------------------------------------------------------- Learned rates

// Each sample stands for its share of the observed pages during the whole time since the last call. After a quiet time
// it would stand for more than was observed, so the time is capped.
void ReuseStatistics::ObserveIdlePages(TimeNs now, double remembered_s) {
  constexpr int kSamples = 32;
  constexpr double kIdleWindow = 4096;  // samples
  constexpr TimeNs kInterval = 20 * kNsPerMs, kLongest = kNsPerSecond, kLearnInterval = kNsPerSecond;
  const TimeNs since = now - observed_at_;
  if (since < kInterval || nodes_->slots() == 0) return;
  observed_at_ = now;
  const std::uint64_t observed = (nodes_->slots() + kObservedOf - 1) / kObservedOf;
  const double page_seconds =
      static_cast<double>(std::min(since, kLongest)) / kNsPerSecond * static_cast<double>(observed) / kSamples;
  for (int i = 0; i < kSamples; ++i) {
    const TreeNode& node = (*nodes_)[static_cast<std::uint32_t>(observed_prng_.NextBelow(observed)) * kObservedOf];
    if (!node.exists() || !node.resting) continue;
    const TimeNs idle = now - node.last_use;
    rates_.SawIdle(EdgeFrequency(node), idle, page_seconds);
    mean_idle_s_ += (static_cast<double>(idle) / kNsPerSecond - mean_idle_s_) / kIdleWindow;
  }
  if (now - learned_at_ < kLearnInterval) return;
  learned_at_ = now;
  rates_.Learn(now, remembered_s);
  LearnBonuses(remembered_s);
}

void ReuseStatistics::CheckIntegrity() const {
  for (std::uint32_t index = 0; index < nodes_->slots(); ++index) {
    const TreeNode& node = (*nodes_)[index];
    if (!node.exists()) continue;
    CHECK_GE(node.wants, 0);
    CHECK(node.frequency >= 0 && node.edge_frequency >= 0);
    CHECK(!node.resting || IsObserved(index));
  }
}

}  // namespace loramux
