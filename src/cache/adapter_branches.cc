#include "cache/adapter_branches.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace loramux {

AdapterBranches::AdapterBranches(DependencyTree* tree, const ResidencyManager& residency)
    : tree_(tree), residency_(residency) {
  if (tree_ != nullptr) base_ = tree_->Hold("");
}

// An adapter without a digest (in the simulator) shares its content with no other adapter.
BranchId AdapterBranches::Know(AdapterGeneration generation) {
  if (generation == kBaseModel) return base_;
  const std::size_t slot = residency_.SlotOf(generation);
  if (branch_of_slot_.size() <= slot) branch_of_slot_.resize(slot + 1);
  if (!branch_of_slot_[slot].has_value()) {
    const std::string& digest = residency_.Get(generation).version->file.digest;
    const BranchId branch = tree_->Hold(digest.empty() ? "generation " + std::to_string(generation.value) : digest);
    branch_of_slot_[slot] = branch;
    if (slots_of_branch_.size() <= branch.value) slots_of_branch_.resize(branch.value + std::size_t{1});
    slots_of_branch_[branch.value].push_back(static_cast<std::uint32_t>(slot));
  }
  return *branch_of_slot_[slot];
}

void AdapterBranches::Forget(const AdapterResidency& adapter, bool clear) {
  if (!Has(adapter.slot)) return;
  const BranchId branch = Of(adapter.slot);
  branch_of_slot_[adapter.slot].reset();
  std::vector<std::uint32_t>& slots = slots_of_branch_[branch.value];
  slots.erase(std::find(slots.begin(), slots.end(), adapter.slot));
  const bool usable = std::any_of(slots.begin(), slots.end(), [&](std::uint32_t slot) {
    return residency_.All()[slot].device == TierState::kResident;
  });
  if (!usable && clear) tree_->Clear(branch);
  tree_->Release(branch);
}

void AdapterBranches::MarkUsable(bool all, std::vector<bool>& usable) const {
  usable.clear();
  if (tree_ == nullptr) return;
  usable.resize(tree_->branches().slots(), all);
  usable[base_.value] = true;
  for (const AdapterGeneration generation : residency_.DeviceResidents()) {
    const std::size_t slot = residency_.SlotOf(generation);
    if (Has(slot)) usable[Of(slot).value] = true;
  }
}

std::int64_t AdapterBranches::CountUnusablePages() const {
  if (tree_ == nullptr) return 0;
  std::vector<bool> usable;
  MarkUsable(/*all=*/false, usable);
  std::int64_t pages = tree_->tiers().pages();
  for (std::uint32_t branch = 0; branch < usable.size(); ++branch) {
    if (usable[branch]) pages -= tree_->tiers().pages(BranchId{branch});
  }
  return pages;
}

void AdapterBranches::CheckUsable() const {
  std::vector<bool> usable;
  MarkUsable(/*all=*/false, usable);
  for (std::uint32_t branch = 0; branch < slots_of_branch_.size(); ++branch) {
    if (!slots_of_branch_[branch].empty()) CHECK(usable[branch] || tree_->tiers().pages(BranchId{branch}) == 0);
  }
}

}  // namespace loramux
