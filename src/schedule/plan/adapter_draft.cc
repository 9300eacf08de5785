#include "schedule/plan/adapter_draft.h"

namespace loramux {

void AdapterDraft::Reset() {
  const ResidencyManager& residency = view_.residency;
  const std::size_t adapters = residency.All().size();
  slot_pins_.assign(view_.pages.pins().begin(), view_.pages.pins().end());
  slot_pins_.resize(adapters, 0);
  flags_.assign(adapters, 0);
  distinct_ = view_.pages.pinned_adapters();
  released_.clear();
  ++plan_;
  evictable_pages_ = residency.idle_pages();
  for (const std::uint32_t branch : view_.tree.tiers().BranchesWithMoves()) {
    for (const std::uint32_t slot : view_.pages.branches().SlotsOf(BranchId{branch})) {
      const AdapterResidency& adapter = residency.All()[slot];
      if (adapter.idle()) evictable_pages_ -= adapter.pages;
    }
  }
  unwanted_pages_ = evictable_pages_;
}

void AdapterDraft::CountEvictable(AdapterGeneration generation, std::int64_t sign) {
  const std::int64_t pages = sign * EvictablePagesOf(view_.residency.Get(generation));
  evictable_pages_ += pages;
  if (!IsWanted(generation)) unwanted_pages_ += pages;
}

void AdapterDraft::Evict(AdapterGeneration generation) {
  CountEvictable(generation, -1);
  const std::size_t slot = view_.residency.SlotOf(generation);
  const AdapterBranches& branches = view_.pages.branches();
  if (branches.IsShared(slot)) --ResidentsOf(branches.Of(slot));
  flags_[slot] |= kEvicted;
}

void AdapterDraft::Pin(AdapterGeneration generation) {
  CountEvictable(generation, -1);
  if (slot_pins_[view_.residency.SlotOf(generation)]++ == 0) ++distinct_;
}

void AdapterDraft::Unpin(AdapterGeneration generation) {
  if (--slot_pins_[view_.residency.SlotOf(generation)] == 0) --distinct_;
  CountEvictable(generation, 1);
  released_.push_back(generation);
}

bool AdapterDraft::CarriesHistory(AdapterGeneration generation) {
  const std::size_t slot = view_.residency.SlotOf(generation);
  const AdapterBranches& branches = view_.pages.branches();
  if (!branches.Has(slot) || !view_.options.maintain_dependency) return false;
  const BranchId branch = branches.Of(slot);
  return history_.pages(branch) > 0 && !(view_.tree.branches().IsShared(branch) && ResidentsOf(branch) > 1);
}

// Counted once per plan and branch.
std::int32_t& AdapterDraft::ResidentsOf(BranchId branch) {
  if (residents_.size() <= branch.value) residents_.resize(branch.value + std::size_t{1});
  Residents& residents = residents_[branch.value];
  if (residents.plan == plan_) return residents.count;
  residents = {plan_, 0};
  for (const std::uint32_t slot : view_.pages.branches().SlotsOf(branch)) {
    const bool stays = view_.residency.All()[slot].device == TierState::kResident && (flags_[slot] & kEvicted) == 0;
    residents.count += static_cast<std::int32_t>(stays);
  }
  return residents.count;
}

}  // namespace loramux
