#include "cache/reuse_statistics.h"

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

TimeNs ReuseStatistics::BonusOf(double frequency) const {
  constexpr double kFewestVisits = 1.0 / 64;  // lower bound of the logarithm's argument
  return static_cast<TimeNs>(static_cast<double>(host_bonus_) * std::log2(std::max(kFewestVisits, frequency)));
}

// ---------------------------------------------------------------- Learned rates

// Each sample stands for its share of the observed pages during the whole time since the last call. After a quiet time
// it would stand for more than was observed, so the time is capped.
void ReuseStatistics::ObserveIdlePages(TimeNs now, double remembered_s) {
  constexpr int kSamples = 32;
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
    rates_.SawIdle(EdgeFrequency(node), now - node.last_use, page_seconds);
  }
  if (now - learned_at_ < kLearnInterval) return;
  learned_at_ = now;
  rates_.Learn(now, remembered_s);
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
