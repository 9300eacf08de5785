#include "prefix/tree_nodes.h"

namespace loramux {

TreeNodes::TreeNodes(std::int64_t page_tokens) : size_(static_cast<std::size_t>(page_tokens)) {
  CHECK_GT(page_tokens, 0);
}

std::uint32_t TreeNodes::Add() {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(nodes_.size()));
    nodes_.emplace_back();
    tokens_.resize(tokens_.size() + size_);
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  constexpr std::size_t kAhead = 4;  // the pages of a prompt are inserted one after another
  if (free_.size() >= kAhead) {
    const std::uint32_t later = free_[free_.size() - kAhead];
    __builtin_prefetch(&nodes_[later], 1);
    __builtin_prefetch(&nodes_[later].host_page, 1);
    __builtin_prefetch(tokens_.data() + later * size_, 1);
  }
  const std::uint32_t generation = nodes_[index].generation + 1;
  nodes_[index] = TreeNode{};
  nodes_[index].generation = generation;
  return index;
}

void TreeNodes::Remove(std::uint32_t index) {
  CHECK(nodes_[index].exists());
  ++nodes_[index].generation;
  free_.push_back(index);
}

void TreeNodes::CheckIntegrity() const {
  std::size_t alive = 0;
  for (const TreeNode& node : nodes_) alive += node.exists();
  CHECK_EQ(alive, size());
  CHECK_EQ(tokens_.size(), nodes_.size() * size_);
  std::vector<bool> listed(nodes_.size(), false);
  for (const std::uint32_t index : free_) {
    CHECK(!nodes_[index].exists() && !listed[index]);
    listed[index] = true;
  }
}

}  // namespace loramux
