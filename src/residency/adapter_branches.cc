#include "residency/adapter_branches.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace loramux {

AdapterBranches::AdapterBranches(DependencyTree& tree, const ResidencyManager& residency)
    : tree_(tree), residency_(residency), base_(tree.Hold("")) {}

BranchId AdapterBranches::Know(AdapterGeneration generation) {
  if (generation == kBaseModel || !tree_.keeps_history()) return base_;
  const std::size_t slot = residency_.SlotOf(generation);
  if (Has(slot)) return Of(slot);
  const std::string& digest = residency_.Get(generation).version->file.digest;
  const BranchId branch = tree_.Hold(digest.empty() ? "generation " + std::to_string(generation.value) : digest);
  if (branch_of_.size() <= slot) branch_of_.resize(slot + 1);
  branch_of_[slot] = branch;
  if (slots_of_.size() <= branch.value) slots_of_.resize(branch.value + std::size_t{1});
  slots_of_[branch.value].push_back(static_cast<std::uint32_t>(slot));
  return branch;
}

void AdapterBranches::Forget(const AdapterResidency& adapter, bool depends) {
  if (!Has(adapter.slot)) return;
  const BranchId branch = Of(adapter.slot);
  branch_of_[adapter.slot].reset();
  std::vector<std::uint32_t>& slots = slots_of_[branch.value];
  slots.erase(std::find(slots.begin(), slots.end(), adapter.slot));
  if (depends && !IsUsable(branch)) tree_.Clear(branch);
  tree_.Release(branch);
}

std::span<const std::uint32_t> AdapterBranches::SlotsOf(BranchId branch) const {
  return branch.value < slots_of_.size() ? std::span<const std::uint32_t>(slots_of_[branch.value])
                                         : std::span<const std::uint32_t>();
}

bool AdapterBranches::IsUsable(BranchId branch) const {
  const std::span<const std::uint32_t> slots = SlotsOf(branch);
  return std::any_of(slots.begin(), slots.end(), [this](std::uint32_t slot) {
    const AdapterResidency& adapter = residency_.All()[slot];
    return adapter.device == TierState::kResident || adapter.arriving() || adapter.failed;
  });
}

void AdapterBranches::LoadFailed(const AdapterResidency& adapter, bool depends) {
  if (depends && Has(adapter.slot) && !IsUsable(Of(adapter.slot))) tree_.Clear(Of(adapter.slot));
}

void AdapterBranches::MarkUsable(bool depends, std::vector<bool>& usable) const {
  usable.assign(tree_.branches().slots(), !depends);
  usable[base_.value] = true;
  for (const AdapterGeneration generation : residency_.Residents(Tier::kDevice)) {
    const std::size_t slot = residency_.SlotOf(generation);
    if (Has(slot)) usable[Of(slot).value] = true;
  }
}

std::int64_t AdapterBranches::UnusablePages() {
  std::int64_t pages = tree_.tiers().pages();
  if (pages == 0) return 0;
  MarkUsable(/*depends=*/true, usable_);
  for (std::uint32_t branch = 0; branch < usable_.size(); ++branch) {
    if (usable_[branch]) pages -= tree_.tiers().pages(BranchId{branch});
  }
  return pages;
}

void AdapterBranches::CheckIntegrity(bool depends) const {
  std::size_t known = 0;
  for (std::uint32_t branch = 0; branch < slots_of_.size(); ++branch) {
    known += slots_of_[branch].size();
    for (const std::uint32_t slot : slots_of_[branch]) CHECK(Has(slot) && Of(slot).value == branch);
    if (!depends || slots_of_[branch].empty() || tree_.tiers().pages(BranchId{branch}) == 0) continue;
    CHECK(IsUsable(BranchId{branch}));
  }
  for (std::size_t slot = 0; slot < branch_of_.size(); ++slot) {
    if (!Has(slot)) continue;
    CHECK(residency_.All()[slot].version != nullptr);
    --known;
  }
  CHECK_EQ(known, 0u);
}

}  // namespace loramux
