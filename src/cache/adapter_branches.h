// Which branch of the dependency tree holds the history of which adapter. Adapters of the same content share a branch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "adapter/residency.h"
#include "base/ids.h"
#include "cache/dependency_tree.h"

namespace loramux {

// The branches of the adapters that requests have used. An adapter is named by its slot (ResidencyManager::SlotOf).
// Holds each branch from Know to Forget. Owns neither argument.
class AdapterBranches {
 public:
  // Null `tree`: no adapter has a branch.
  AdapterBranches(DependencyTree* tree, const ResidencyManager& residency);

  // The branch of the adapter; holds it if the adapter is new. REQUIRES: a tree; the adapter is known.
  BranchId Know(AdapterGeneration generation);
  // The adapter is dropped. Its history goes with it if `clear`, unless the device has another adapter of the same
  // content.
  void Forget(const AdapterResidency& adapter, bool clear);

  // The branch of the base model.
  BranchId base() const { return base_; }
  // True if the adapter in the slot has a branch.
  bool Has(std::size_t slot) const { return slot < branch_of_slot_.size() && branch_of_slot_[slot].has_value(); }
  // REQUIRES: Has(slot).
  BranchId Of(std::size_t slot) const { return *branch_of_slot_[slot]; }
  // The slots of the adapters with this branch; none for the base model.
  std::span<const std::uint32_t> SlotsOf(BranchId branch) const {
    return branch.value < slots_of_branch_.size() ? std::span<const std::uint32_t>(slots_of_branch_[branch.value])
                                                  : std::span<const std::uint32_t>();
  }
  // True if several known adapters share the branch of this one.
  bool IsShared(std::size_t slot) const { return Has(slot) && tree_->branches().IsShared(Of(slot)); }
  // True if pages of the adapter's history move between the tiers.
  bool HasMoves(std::size_t slot) const { return Has(slot) && tree_->tiers().HasMoves(Of(slot)); }

  // Sets `usable`, by branch: the base model and an adapter of its content are on the device. `all`: every branch is.
  void MarkUsable(bool all, std::vector<bool>& usable) const;
  // Pages of history on the device of which no adapter is there. Takes time proportional to the adapters on the device.
  std::int64_t CountUnusablePages() const;

  // Aborts if history on the device is unusable. REQUIRES: dependency is maintained.
  void CheckUsable() const;

 private:
  DependencyTree* tree_;
  const ResidencyManager& residency_;
  BranchId base_;
  std::vector<std::optional<BranchId>> branch_of_slot_;
  std::vector<std::vector<std::uint32_t>> slots_of_branch_;  // the inverse
};

}  // namespace loramux
