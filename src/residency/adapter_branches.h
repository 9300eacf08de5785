// Which adapters hold the content of which branch of the dependency tree. Several adapters of equal content share a
// branch, and history on the device is usable as long as one of them is on the device.
//
// An adapter is known here from the first request that uses it (Know) until it is dropped (Forget). It is named by its
// slot in the ResidencyManager. Not thread-safe; reads no clock. Allocates nothing in the steady state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "prefix/dependency_tree.h"
#include "residency/adapter_residency.h"

namespace loramux {

// See the top of this file.
class AdapterBranches {
 public:
  // Owns neither argument. Holds the branch of the base model for good.
  AdapterBranches(DependencyTree& tree, const ResidencyManager& residency);

  // The branch of the base model.
  BranchId base() const { return base_; }
  // The branch of the adapter's content; holds it if the adapter is new here. An adapter without a digest (in the
  // simulator) shares its content with no other adapter. If the tree keeps nothing, no history depends on an adapter:
  // then none has a branch, and all use that of the base model. REQUIRES: known to the residency, or kBaseModel.
  BranchId Know(AdapterGeneration generation);
  // Forgets an adapter that is about to be dropped, and releases its branch. If `depends` and no other adapter of the
  // content is on the device, its history becomes unusable and is freed.
  void Forget(const AdapterResidency& adapter, bool depends);

  // Whether the adapter in the slot has a branch, and which.
  bool Has(std::size_t slot) const { return slot < branch_of_.size() && branch_of_[slot].has_value(); }
  BranchId Of(std::size_t slot) const { return *branch_of_[slot]; }
  // Slots of the adapters with the branch's content; none for the base model's branch.
  std::span<const std::uint32_t> SlotsOf(BranchId branch) const;
  // Whether pages of the adapter's branch are in transfer between the tiers.
  bool HasMoves(std::size_t slot) const { return Has(slot) && tree_.tiers().HasMoves(Of(slot)); }
  // Whether other adapters have the branch of the adapter too.
  bool IsShared(std::size_t slot) const { return Has(slot) && tree_.branches().IsShared(Of(slot)); }

  // Fills `usable`, by branch: those of the base model and of the adapters on the device, or all if not `depends`.
  void MarkUsable(bool depends, std::vector<bool>& usable) const;
  // Pages of history on the device without an adapter of their content there.
  std::int64_t UnusablePages();

  // The adapter's load failed. `depends`: history that requests computed meanwhile goes, unless another adapter with
  // this content is on the device. REQUIRES: no request runs with it.
  void LoadFailed(const AdapterResidency& adapter, bool depends);

  // Aborts if slots and branches disagree. `depends`: also if history on the device is unusable.
  void CheckIntegrity(bool depends) const;

 private:
  // Whether an adapter of the branch is on the device, or on its way there so that requests may run with it.
  bool IsUsable(BranchId branch) const;

  DependencyTree& tree_;
  const ResidencyManager& residency_;
  BranchId base_;
  std::vector<std::optional<BranchId>> branch_of_;    // by slot
  std::vector<std::vector<std::uint32_t>> slots_of_;  // by branch: the inverse
  std::vector<bool> usable_;                          // scratch of UnusablePages
};

}  // namespace loramux
