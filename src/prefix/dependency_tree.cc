#include "prefix/dependency_tree.h"

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
}

}  // namespace loramux
