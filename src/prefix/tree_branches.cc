#include "prefix/tree_branches.h"

#include <utility>

#include "base/check.h"

namespace loramux {

BranchId TreeBranches::Hold(std::string_view content_digest) {
  std::string key(content_digest);
  const auto found = branch_by_key_.find(key);
  if (found != branch_by_key_.end()) {
    ++branches_[found->second].holds;
    return BranchId{found->second};
  }
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(branches_.size()));
    branches_.emplace_back();
  }
  const std::uint32_t id = free_.back();
  free_.pop_back();
  branches_[id] = {.holds = 1, .top = index_->AddTop(id, key), .tops = {}, .key = key};
  branch_by_key_.emplace(std::move(key), id);
  return BranchId{id};
}

bool TreeBranches::Release(BranchId branch) {
  CHECK(IsHeld(branch));
  return --branches_[branch.value].holds == 0;
}

void TreeBranches::Remove(BranchId branch) {
  Branch& entry = branches_[branch.value];
  CHECK_EQ(entry.holds, 0);
  CHECK(entry.tops.empty());  // no request holds one
  index_->RemoveTop(entry.top);
  branch_by_key_.erase(entry.key);
  entry = {};
  free_.push_back(branch.value);
}

NodeId TreeBranches::Top(BranchId branch) const {
  CHECK(IsHeld(branch));
  return nodes_->IdOf(branches_[branch.value].top);
}

NodeId TreeBranches::HoldTop(BranchId branch, std::string_view domain) {
  if (domain.empty()) return Top(branch);
  CHECK(IsHeld(branch));
  std::string key = std::to_string(branch.value) + "/";
  key += domain;
  const auto found = top_by_key_.find(key);
  if (found != top_by_key_.end()) {
    ++tops_.at(found->second).holds;
    return nodes_->IdOf(found->second);
  }
  std::vector<std::uint32_t>& tops = branches_[branch.value].tops;
  const std::uint32_t top = index_->AddTop(branch.value, branches_[branch.value].key + "\n" + key);
  tops_[top] = {.key = key, .holds = 1, .position = static_cast<std::uint32_t>(tops.size())};
  tops.push_back(top);
  top_by_key_.emplace(std::move(key), top);
  return nodes_->IdOf(top);
}

void TreeBranches::ReleaseTop(NodeId top) {
  CHECK_EQ(nodes_->Depth(top), 0);
  const auto found = tops_.find(top.index);
  if (found == tops_.end()) return;  // the shared domain's
  CHECK_GT(found->second.holds, 0);
  --found->second.holds;
  RemoveTopIfUnused(top.index);
}

void TreeBranches::RemoveTopIfUnused(std::uint32_t index) {
  const TreeNode& node = (*nodes_)[index];
  if (node.depth > 0 || node.first_child != kNone) return;
  const auto found = tops_.find(index);
  if (found == tops_.end() || found->second.holds > 0) return;
  std::vector<std::uint32_t>& tops = branches_[node.branch].tops;
  tops[found->second.position] = tops.back();
  tops_.at(tops.back()).position = found->second.position;
  tops.pop_back();
  top_by_key_.erase(found->second.key);
  tops_.erase(found);
  index_->RemoveTop(index);
}

void TreeBranches::AppendTops(BranchId branch, std::vector<std::uint32_t>& out) const {
  const Branch& entry = branches_[branch.value];
  out.push_back(entry.top);
  out.insert(out.end(), entry.tops.begin(), entry.tops.end());
}

void TreeBranches::CheckIntegrity() const {
  std::size_t tops = 0;
  for (std::uint32_t index = 0; index < nodes_->slots(); ++index) {
    const TreeNode& node = (*nodes_)[index];
    if (!node.exists()) continue;
    CHECK_GT(branches_.at(node.branch).holds, 0);
    if (node.depth > 0) continue;
    CheckTop(index);
    ++tops;
  }
  CHECK_EQ(tops, this->tops());
  CHECK_EQ(tops_.size(), top_by_key_.size());
}

void TreeBranches::CheckTop(std::uint32_t index) const {
  const TreeNode& node = (*nodes_)[index];
  if (branches_[node.branch].top == index) return;
  const DomainTop& top = tops_.at(index);
  CHECK_EQ(branches_[node.branch].tops.at(top.position), index);
  CHECK_EQ(top_by_key_.at(top.key), index);
  CHECK(top.holds > 0 || node.first_child != kNone);
}

}  // namespace loramux
