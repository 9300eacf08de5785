// Checks the invariants of the dependency tree.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "cache/dependency_tree.h"

namespace loramux {

void DependencyTree::CheckIntegrity() const {
  std::int64_t pages = 0, idle = 0, alive = 0, host_pages = 0, moving = 0;
  std::size_t idle_leaves = 0, host_roots = 0, in_table = 0, tops = 0, branches_with_moves = 0;
  std::int64_t grouped = 0;
  std::vector<std::int64_t> branch_pages(branches_.size(), 0), branch_moving(branches_.size(), 0);
  std::vector<std::int32_t> device_children(nodes_.size(), 0), child_locks(nodes_.size(), 0);
  std::vector<bool> page_seen(static_cast<std::size_t>(device_->capacity_pages()), false);
  std::vector<bool> host_seen(static_cast<std::size_t>(host_ == nullptr ? 0 : host_->capacity_pages()), false);
  for (std::uint32_t index = 0; index < nodes_.size(); ++index) {
    const Node& node = nodes_[index];
    if ((node.generation & 1u) == 0) {
      CHECK(node.leaf_position == kNone && node.root_position == kNone);
      continue;
    }
    ++alive;
    CHECK_GT(branches_[node.branch].holds, 0);
    if (node.depth == 0) {
      CheckTop(index);
      ++tops;
      continue;
    }
    CheckNode(index);
    grouped += node.grouped;
    const bool has_page = node.page.generation != 0, has_host_page = node.host_page.generation != 0;
    if (has_page) {
      CHECK(device_->IsCurrent(node.page));
      CHECK(!page_seen[node.page.index]);
      page_seen[node.page.index] = true;
      ++device_children[node.parent];
    }
    if (has_host_page) {
      CHECK(host_->IsCurrent(node.host_page));
      CHECK(!host_seen[node.host_page.index]);
      host_seen[node.host_page.index] = true;
    }
    child_locks[node.parent] += node.locks;
    pages += has_page;
    branch_pages[node.branch] += has_page;
    host_pages += has_host_page;
    moving += node.move != Move::kNone;
    branch_moving[node.branch] += node.move != Move::kNone;
    idle += has_page && node.locks == 0;
    CHECK_EQ(IsHostRoot(node), node.root_position != kNone);
    if (IsHostRoot(node)) CHECK_EQ(host_roots_[node.root_position], index);
    host_roots += IsHostRoot(node);
    const bool idle_leaf = has_page && node.locks == 0 && node.device_children == 0;
    CHECK_EQ(idle_leaf, node.leaf_position != kNone);
    if (idle_leaf) {
      CHECK_EQ(idle_leaves_[node.leaf_position], index);
      ++idle_leaves;
    }
  }
  for (std::uint32_t index = 0; index < nodes_.size(); ++index) {
    const Node& node = nodes_[index];
    if ((node.generation & 1u) == 0) continue;
    CHECK_EQ(device_children[index], node.device_children);
    if (node.depth > 0) CHECK_GE(node.locks, child_locks[index]);  // each path ends at one node
  }
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    CHECK_EQ(branch_pages[i], branches_[i].pages);
    CHECK_EQ(branch_moving[i], branches_[i].moving);
    branches_with_moves += branch_moving[i] > 0;
    if (branch_moving[i] > 0) CHECK_EQ(moving_branches_.at(branches_[i].moving_position), i);
  }
  CHECK_EQ(branches_with_moves, moving_branches_.size());
  CHECK_EQ(pages, pages_);
  CHECK_EQ(idle, idle_pages_);
  CHECK_EQ(host_pages, host_pages_);
  CHECK_EQ(moving, moving_);
  CHECK_EQ(grouped, groups_.size());
  groups_.CheckIntegrity();
  CHECK_EQ(idle_leaves, idle_leaves_.size());
  CHECK_EQ(host_roots, host_roots_.size());
  for (const Slot& slot : slots_) in_table += slot.node != kNone;
  CHECK_EQ(tops, this->tops());
  CHECK_EQ(tops_.size(), top_by_key_.size());
  CHECK_EQ(in_table + tops, static_cast<std::size_t>(alive));
  CHECK_EQ(static_cast<std::size_t>(alive) + free_nodes_.size(), nodes_.size());
}

// Checks that the node is the top of its branch, or that of a domain that has holds or pages.
void DependencyTree::CheckTop(std::uint32_t index) const {
  const Node& node = nodes_[index];
  if (branches_[node.branch].top == index) return;
  const DomainTop& top = tops_.at(index);
  CHECK_EQ(branches_[node.branch].tops.at(top.position), index);
  CHECK_EQ(top_by_key_.at(top.key), index);
  CHECK(top.holds > 0 || node.first_child != kNone);
}

// Checks a node by itself and against its parent.
void DependencyTree::CheckNode(std::uint32_t index) const {
  const Node& node = nodes_[index];
  const Node& parent = nodes_[node.parent];
  CHECK_EQ(parent.generation & 1u, 1u);
  CHECK_EQ(parent.depth + 1, node.depth);
  CHECK_EQ(parent.branch, node.branch);
  CHECK_EQ(HashOf(parent.hash, TokensOf(index).data()), node.hash);
  CHECK_EQ(Find(node.parent, node.hash, TokensOf(index).data()), index);
  CHECK_EQ(node.previous_sibling == kNone, parent.first_child == index);
  CHECK(node.grouped || parent.first_child == index);
  if (node.grouped) CHECK_EQ(groups_.KeyOf(index), GroupKey(node.parent, TokensOf(index).data()));
  CHECK_GE(node.locks, 0);
  CHECK_GE(node.wants, 0);
  CHECK(node.page.generation != 0 || node.host_page.generation != 0);
  if (node.page.generation != 0) CHECK(parent.depth == 0 || parent.page.generation != 0);
  if (OnDevice(node)) CHECK(OnDevice(parent));
  if (node.page.generation == 0) CHECK_EQ(node.locks, 0);
  if (node.move != Move::kNone) {
    CHECK(node.page.generation != 0 && node.host_page.generation != 0);
    CHECK_GT(node.locks, 0);
  }
}

}  // namespace loramux
