#include "prefix/node_tiers.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loramux {
namespace {

constexpr std::size_t kMostNewIdleLeaves = std::size_t{1} << 16;  // listed until TakeNewIdleLeaves takes them

// One flag for each page of the pool; null: none.
std::vector<bool> FlagsFor(const PagePool* pool) {
  return std::vector<bool>(pool == nullptr ? 0 : static_cast<std::size_t>(pool->capacity_pages()), false);
}

}  // namespace

NodeTiers::NodeTiers(TreeNodes* nodes, PagePool* device, PagePool* host)
    : nodes_(nodes), device_(device), host_(host), idle_leaves_(nodes), host_roots_(nodes) {}

void NodeTiers::CopyPath(NodeId node, std::span<PageHandle> out) const {
  CHECK_EQ(static_cast<std::int64_t>(out.size()), nodes_->Depth(node));
  std::uint32_t at = node.index;
  for (std::size_t i = out.size(); i-- > 0; at = (*nodes_)[at].parent) out[i] = (*nodes_)[at].page;
}

// ---------------------------------------------------------------- Lists

void NodeTiers::UpdateLeaf(std::uint32_t index) {
  if (!idle_leaves_.Set(index, (*nodes_)[index].is_idle_leaf())) return;
  if (new_idle_leaves_.size() < kMostNewIdleLeaves) {
    new_idle_leaves_.push_back(nodes_->IdOf(index));
  } else {
    new_idle_leaves_complete_ = false;
  }
}

void NodeTiers::UpdateHostRoot(std::uint32_t index) { host_roots_.Set(index, nodes_->IsHostRoot(index)); }

// Call after the node arrived on the device or left it. Takes time proportional to its children; most nodes have one.
void NodeTiers::UpdateHostRootsBelow(std::uint32_t index) {
  UpdateHostRoot(index);
  if (host_pages_ == 0) return;
  for (std::uint32_t at = (*nodes_)[index].first_child; at != kNone; at = (*nodes_)[at].next_sibling)
    UpdateHostRoot(at);
}

bool NodeTiers::TakeNewIdleLeaves(std::vector<NodeId>& out) {
  out.insert(out.end(), new_idle_leaves_.begin(), new_idle_leaves_.end());
  new_idle_leaves_.clear();
  return std::exchange(new_idle_leaves_complete_, true);
}

// ---------------------------------------------------------------- Users

void NodeTiers::UsePath(std::uint32_t tail) {
  for (std::uint32_t at = tail; (*nodes_)[at].depth > 0; at = (*nodes_)[at].parent) AddUser(at);
  UpdateLeaf(tail);
}

// ---------------------------------------------------------------- Pages come and go

void NodeTiers::ArriveOnDevice(std::uint32_t index, PageHandle page) {
  TreeNode& node = (*nodes_)[index];
  CHECK(device_->IsCurrent(page));
  node.page = page;
  ++pages_;
  if (branches_.size() <= node.branch) branches_.resize(node.branch + std::size_t{1});
  ++branches_[node.branch].pages;
  if (node.users == 0) ++idle_pages_;
  ++(*nodes_)[node.parent].device_children;
  UpdateLeaf(node.parent);
  UpdateLeaf(index);
  UpdateHostRootsBelow(index);
  if (node.has_host_page() && !node.moving()) OfferToDrop(index);  // a leaf of the host part, or now a copy
}

void NodeTiers::LeaveDevice(std::uint32_t index) {
  TreeNode& node = (*nodes_)[index];
  node.page = {};
  --pages_;
  --branches_[node.branch].pages;
  if (node.users == 0) --idle_pages_;
  --(*nodes_)[node.parent].device_children;
  UpdateLeaf(node.parent);
  UpdateLeaf(index);
  UpdateHostRootsBelow(index);
}

void NodeTiers::EvictToHost(std::uint32_t index) {
  const TreeNode& node = (*nodes_)[index];
  CHECK(node.has_host_copy() && node.users == 0 && node.device_children == 0);
  device_->Free(PageCategory::kKv, std::span(&node.page, 1));
  LeaveDevice(index);
  OfferToDrop(index);
}

void NodeTiers::FreeHostPage(std::uint32_t index) {
  TreeNode& node = (*nodes_)[index];
  host_->Free(PageCategory::kKv, std::span(&node.host_page, 1));
  node.host_page = {};
  --host_pages_;
  drop_order_.Remove(index);
}

void NodeTiers::RemovePages(std::uint32_t index) {
  TreeNode& node = (*nodes_)[index];
  CHECK_EQ(node.first_child, kNone);
  const bool moving = node.moving();
  if (node.has_device_page()) {
    if (!moving) device_->Free(PageCategory::kKv, std::span(&node.page, 1));
    LeaveDevice(index);
  }
  if (moving) {
    SetMove(node, Move::kNone);
    node.host_page = {};
    --host_pages_;
    ++orphans_;
    drop_order_.Remove(index);
  } else if (node.has_host_page()) {
    FreeHostPage(index);
  }
  UpdateLeaf(index);
  UpdateHostRoot(index);
}

// A worth never falls and does not change with time alone, so an entry whose worth has risen may wait until it is
// first.
const HostOrder::Entry* NodeTiers::NextToDrop() {
  while (const HostOrder::Entry* const first = drop_order_.First()) {
    const std::uint32_t index = first->item;
    const TreeNode& node = (*nodes_)[index];
    if (!node.is_droppable()) {
      drop_order_.Remove(index);
    } else if (node.host_worth != first->worth) {
      drop_order_.Set(HostEntry(node, index));
    } else {
      return first;
    }
  }
  return nullptr;
}

// ---------------------------------------------------------------- Transfers

void NodeTiers::SetMove(TreeNode& node, Move move) {
  const int change = (move != Move::kNone) - (node.move != Move::kNone);
  node.move = move;
  if (change == 0) return;
  moving_ += change;
  BranchCounts& branch = branches_[node.branch];
  branch.moving += change;
  if (change > 0 && branch.moving == 1) {
    branch.moving_position = static_cast<std::uint32_t>(moving_branches_.size());
    moving_branches_.push_back(node.branch);
  } else if (branch.moving == 0) {
    branches_[moving_branches_.back()].moving_position = branch.moving_position;
    moving_branches_[branch.moving_position] = moving_branches_.back();
    moving_branches_.pop_back();
  }
}

void NodeTiers::BeginBackUp(std::span<const NodeId> nodes, std::vector<MovingPages>& pages) {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    TreeNode& node = nodes_->At(nodes[i]);
    CHECK(node.on_device() && !node.has_host_page() && !node.moving());
    if (i > 0) CHECK_EQ(node.parent, nodes[i - 1].index);
    CHECK(host_->Allocate(PageCategory::kKv, std::span(&node.host_page, 1)));
    ++host_pages_;
    SetMove(node, Move::kBackUp);
    pages.push_back({nodes[i], node.page, node.host_page});
  }
  UsePath(nodes.back().index);
}

void NodeTiers::BeginFetch(NodeId tail, std::vector<MovingPages>& pages) {
  const std::size_t first = pages.size();
  for (std::uint32_t at = tail.index; !(*nodes_)[at].on_device(); at = (*nodes_)[at].parent) {
    CHECK(!(*nodes_)[at].moving());
    pages.push_back({nodes_->IdOf(at), {}, (*nodes_)[at].host_page});
  }
  CHECK_GT(pages.size(), first);
  std::reverse(pages.begin() + static_cast<std::ptrdiff_t>(first), pages.end());
  for (MovingPages& page : std::span(pages).subspan(first)) {
    CHECK(device_->Allocate(PageCategory::kKv, std::span(&page.device, 1)));
    SetMove((*nodes_)[page.node.index], Move::kFetch);
    ArriveOnDevice(page.node.index, page.device);
  }
  UsePath(tail.index);
}

// A branch is removed as a whole, so either all nodes of `pages` exist or none.
void NodeTiers::EndMove(std::span<const MovingPages> pages, bool failed) {
  const NodeId tail = pages.back().node;
  if (!nodes_->Exists(tail)) {
    for (const MovingPages& page : pages) {
      device_->Free(PageCategory::kKv, std::span(&page.device, 1));
      host_->Free(PageCategory::kKv, std::span(&page.host, 1));
    }
    orphans_ -= static_cast<std::int64_t>(pages.size());
    return;
  }
  for (std::uint32_t at = tail.index; (*nodes_)[at].depth > 0; at = (*nodes_)[at].parent) RemoveUser(at);
  UpdateLeaf(tail.index);
  for (std::size_t i = pages.size(); i-- > 0;) {
    const std::uint32_t index = pages[i].node.index;
    const bool fetched = (*nodes_)[index].move == Move::kFetch;
    SetMove((*nodes_)[index], Move::kNone);
    if (fetched) UpdateHostRootsBelow(index);
    if (failed && !fetched) {
      FreeHostPage(index);
      continue;
    }
    if (failed) {
      device_->Free(PageCategory::kKv, std::span(&pages[i].device, 1));
      LeaveDevice(index);
    }
    OfferToDrop(index);
  }
}

// ---------------------------------------------------------------- Integrity

void NodeTiers::CheckIntegrity() const {
  std::vector<bool> device_seen = FlagsFor(device_), host_seen = FlagsFor(host_);
  for (std::uint32_t index = 0; index < nodes_->slots(); ++index) {
    const TreeNode& node = (*nodes_)[index];
    if (node.exists() && node.depth > 0) CheckNode(index);
    const bool counts = node.exists() && node.depth > 0;
    idle_leaves_.Check(index, counts && node.is_idle_leaf());
    host_roots_.Check(index, nodes_->IsHostRoot(index));
    if (!counts) continue;
    if (node.has_device_page()) {
      CHECK(!device_seen[node.page.index]);
      device_seen[node.page.index] = true;
    }
    if (node.has_host_page()) {
      CHECK(!host_seen[node.host_page.index]);
      host_seen[node.host_page.index] = true;
    }
  }
  CheckUsers();
  CheckCounts();
  drop_order_.CheckIntegrity();
}

// Checks a node by itself and against its parent.
void NodeTiers::CheckNode(std::uint32_t index) const {
  const TreeNode& node = (*nodes_)[index];
  const TreeNode& parent = (*nodes_)[node.parent];
  CHECK_GE(node.users, 0);
  CHECK(node.has_device_page() || node.has_host_page());
  if (node.has_device_page()) CHECK(device_->IsCurrent(node.page));
  if (node.has_host_page()) CHECK(host_->IsCurrent(node.host_page));
  if (node.has_device_page()) CHECK(parent.depth == 0 || parent.has_device_page());
  if (node.on_device()) CHECK(parent.on_device());
  if (!node.has_device_page()) CHECK_EQ(node.users, 0);
  if (!node.moving()) return;
  CHECK(node.has_device_page() && node.has_host_page());
  CHECK_GT(node.users, 0);
}

void NodeTiers::CheckUsers() const {
  std::vector<std::int32_t> device_children(nodes_->slots(), 0), child_users(nodes_->slots(), 0);
  for (std::uint32_t index = 0; index < nodes_->slots(); ++index) {
    const TreeNode& node = (*nodes_)[index];
    if (!node.exists() || node.depth == 0) continue;
    device_children[node.parent] += node.has_device_page();
    child_users[node.parent] += node.users;
  }
  for (std::uint32_t index = 0; index < nodes_->slots(); ++index) {
    const TreeNode& node = (*nodes_)[index];
    if (!node.exists()) continue;
    CHECK_EQ(device_children[index], node.device_children);
    if (node.depth > 0) CHECK_GE(node.users, child_users[index]);  // each path ends at one node
  }
}

void NodeTiers::CheckCounts() const {
  std::int64_t pages = 0, idle = 0, host_pages = 0, moving = 0;
  std::size_t idle_leaves = 0, host_roots = 0, with_moves = 0;
  std::vector<BranchCounts> branches(branches_.size());
  for (std::uint32_t index = 0; index < nodes_->slots(); ++index) {
    const TreeNode& node = (*nodes_)[index];
    if (!node.exists() || node.depth == 0) continue;
    pages += node.has_device_page();
    idle += node.has_device_page() && node.users == 0;
    host_pages += node.has_host_page();
    moving += node.moving();
    idle_leaves += node.is_idle_leaf();
    host_roots += nodes_->IsHostRoot(index);
    if (node.has_device_page()) ++branches.at(node.branch).pages;
    if (node.moving()) ++branches.at(node.branch).moving;
  }
  for (std::size_t i = 0; i < branches.size(); ++i) {
    CHECK_EQ(branches[i].pages, branches_[i].pages);
    CHECK_EQ(branches[i].moving, branches_[i].moving);
    with_moves += branches[i].moving > 0;
    if (branches[i].moving > 0) CHECK_EQ(moving_branches_.at(branches_[i].moving_position), i);
  }
  CHECK_EQ(with_moves, moving_branches_.size());
  CHECK_EQ(pages, pages_);
  CHECK_EQ(idle, idle_pages_);
  CHECK_EQ(host_pages, host_pages_);
  CHECK_EQ(moving, moving_);
  CHECK_EQ(idle_leaves, idle_leaves_.all().size());
  CHECK_EQ(host_roots, host_roots_.all().size());
}

}  // namespace loramux
