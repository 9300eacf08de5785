#include "prefix/dependency_tree.h"

#include <vector>

#include "base/check.h"

namespace loramux {

DependencyTree::DependencyTree(std::int64_t page_tokens, PagePool* device, PagePool* host, TimeNs frequency_half_life,
                               std::uint64_t hash_seed)
    : keeps_history_(device != nullptr),
      nodes_(page_tokens),
      index_(&nodes_, hash_seed),
      branches_(&nodes_, &index_),
      tiers_(&nodes_, device, host),
      reuse_(&nodes_, frequency_half_life, /*by_edge=*/host != nullptr) {}

void DependencyTree::set_state_pages(std::int64_t pages) {
  CHECK_EQ(tiers_.pages() + tiers_.host_pages(), 0);
  state_pages_ = pages;
}

// ---------------------------------------------------------------- Branches

void DependencyTree::Release(BranchId branch) {
  if (!branches_.Release(branch)) return;
  Clear(branch);
  branches_.Remove(branch);
}

void DependencyTree::Clear(BranchId branch) {
  std::vector<std::uint32_t> tops;
  branches_.AppendTops(branch, tops);  // a copy: tops without holds are removed with their last page
  for (const std::uint32_t top : tops) RemoveBelow(top);
  CHECK_EQ(tiers_.pages(branch), 0);
}

void DependencyTree::Remove(std::uint32_t index) {
  const std::uint32_t parent = nodes_[index].parent;
  if (state_pages_ > 0 && nodes_[index].state == state_pages_)
    nodes_.SetSnapshot(nodes_[index].snapshot, TreeNodes::kNone);
  tiers_.RemovePages(index);
  index_.Remove(index);
  branches_.RemoveTopIfUnused(parent);
}

void DependencyTree::RemoveBelow(std::uint32_t top) {
  for (std::uint32_t at = top; nodes_[top].first_child != TreeNodes::kNone;) {
    if (nodes_[at].first_child != TreeNodes::kNone) {
      at = nodes_[at].first_child;
      continue;
    }
    const std::uint32_t parent = nodes_[at].parent;
    Remove(at);
    at = parent;
  }
}

// ---------------------------------------------------------------- Use

void DependencyTree::Use(NodeId tail, TimeNs now) {
  CHECK(nodes_.Depth(tail) == 0 || tiers_.HasDevicePage(tail));
  for (std::uint32_t at = tail.index; nodes_[at].depth > 0; at = nodes_[at].parent) {
    tiers_.AddUser(at);
    reuse_.Visit(at, now);
  }
  reuse_.CountEdges(tail.index);
  tiers_.UpdateLeaf(tail.index);
}

void DependencyTree::EndUse(NodeId tail, TimeNs now) {
  CHECK(nodes_.Exists(tail));
  for (std::uint32_t at = tail.index; nodes_[at].depth > 0; at = nodes_[at].parent) {
    const bool idle = tiers_.RemoveUser(at);
    reuse_.EndUse(at, now, idle);
  }
  tiers_.UpdateLeaf(tail.index);
}

void DependencyTree::EndUseOfLast(NodeId id, TimeNs now) {
  CHECK_GT(nodes_.Depth(id), 0);
  const bool idle = tiers_.RemoveUser(id.index);
  reuse_.EndUse(id.index, now, idle);
  tiers_.UpdateLeaf(id.index);
}

DependencyTree::Inserted DependencyTree::Insert(NodeId parent, std::span<const TokenId> tokens, PageHandle page,
                                                TimeNs now) {
  if (!keeps_history_) return {parent, Inserted::kNotNow};
  CHECK(nodes_.Depth(parent) == 0 || nodes_[parent.index].users > 0);
  const PrefixIndex::Place place = index_.Find(parent.index, tokens);
  if (place.node != TreeNodes::kNone) {
    const NodeId found = nodes_.IdOf(place.node);
    if (nodes_[place.node].move == TreeNode::Move::kFetch) return {found, Inserted::kNotNow};
    const bool existed = tiers_.OnDevice(found);
    if (!existed) tiers_.ArriveOnDevice(place.node, page);  // computed again; the copy in the host tier stays
    tiers_.AddUser(place.node);
    reuse_.VisitInserted(place.node, now);
    tiers_.UpdateLeaf(place.node);
    return {found, existed ? Inserted::kExisted : Inserted::kTaken};
  }
  const std::uint32_t index = index_.Insert(parent.index, tokens, place.hash);
  reuse_.VisitInserted(index, now);
  tiers_.AddUser(index);
  tiers_.ArriveOnDevice(index, page);
  return {nodes_.IdOf(index), Inserted::kTaken};
}

void DependencyTree::Evict(NodeId id) {
  const TreeNode& node = nodes_.At(id);
  CHECK_GT(node.depth, 0);
  CHECK_EQ(node.users, 0);
  CHECK_EQ(node.device_children, 0);
  CHECK(node.on_device());
  if (node.has_host_copy()) {
    tiers_.EvictToHost(id.index);
    return;
  }
  RemoveBelow(id.index);
  Remove(id.index);
}

// ---------------------------------------------------------------- Snapshots

// Prompts have no negative tokens.
DependencyTree::Inserted DependencyTree::InsertState(NodeId parent, PageHandle page, TimeNs now) {
  const std::int32_t number = nodes_.At(parent).state + 1;
  CHECK_LE(number, state_pages_);
  const Inserted inserted =
      Insert(parent, std::vector<TokenId>(static_cast<std::size_t>(nodes_.page_tokens()), -number), page, now);
  if (inserted.outcome != Inserted::kTaken) return inserted;
  const std::uint32_t above = nodes_.KvNode(parent).index;
  nodes_[inserted.node.index].state = number;
  nodes_[inserted.node.index].snapshot = above;
  if (number == state_pages_) nodes_.SetSnapshot(above, inserted.node.index);
  return inserted;
}

NodeId DependencyTree::Beginning(NodeId tail) const {
  if (state_pages_ == 0) return tail;
  std::uint32_t at = nodes_.KvNode(tail).index;
  while (nodes_[at].depth > 0 && nodes_[at].snapshot == TreeNodes::kNone) at = nodes_[at].parent;
  return nodes_.IdOf(nodes_[at].depth > 0 ? nodes_[at].snapshot : at);
}

void DependencyTree::EndUseAfter(NodeId tail, NodeId node, TimeNs now) {
  while (node != tail) {
    const NodeId parent = nodes_.Parent(node);
    EndUseOfLast(node, now);
    node = parent;
  }
}

void DependencyTree::Renew(NodeId node, TimeNs now) {
  CHECK(tiers_.HasDevicePage(node) && nodes_.At(node).state == state_pages_);
  const NodeId tail = nodes_.KvNode(node);
  for (std::uint32_t at = node.index; at != tail.index; at = nodes_[at].parent) tiers_.AddUser(at);
  tiers_.UpdateLeaf(node.index);
  EndUseAfter(tail, node, now);
}

// ---------------------------------------------------------------- The host tier

void DependencyTree::set_host_bonus(TimeNs per_doubling) {
  CHECK_EQ(tiers_.host_pages(), 0);  // no entry of the order may have another worth
  if (keeps_history_) reuse_.set_host_bonus(per_doubling);
}

void DependencyTree::Drop(NodeId id) {
  const TreeNode& node = nodes_.At(id);
  CHECK(node.has_host_page() && !node.moving());
  if (node.on_device()) return tiers_.FreeHostPage(id.index);
  const NodeId parent = nodes_.Parent(id);
  Remove(id.index);  // perhaps the parent too, if that is a top
  OfferToDrop(parent);
}

void DependencyTree::CheckIntegrity() const {
  nodes_.CheckIntegrity();
  index_.CheckIntegrity();
  branches_.CheckIntegrity();
  tiers_.CheckIntegrity();
  reuse_.CheckIntegrity();
  CheckSnapshots();
}

void DependencyTree::CheckSnapshots() const {
  for (std::uint32_t index = 0; index < nodes_.slots(); ++index) {
    const TreeNode& node = nodes_[index];
    if (!node.exists()) continue;
    CHECK(node.state >= 0 && node.state <= state_pages_);
    if (node.state > 0) {
      const TreeNode& parent = nodes_[node.parent];
      CHECK_EQ(parent.state, node.state - 1);
      CHECK_EQ(node.snapshot, node.state == 1 ? node.parent : parent.snapshot);
      if (node.state == state_pages_) CHECK_EQ(nodes_[node.snapshot].snapshot, index);
    } else if (node.snapshot != TreeNodes::kNone) {
      CHECK(nodes_[node.snapshot].exists());
      CHECK_EQ(nodes_[node.snapshot].state, state_pages_);
      CHECK_EQ(nodes_[node.snapshot].snapshot, index);
    }
  }
}

}  // namespace loramux
