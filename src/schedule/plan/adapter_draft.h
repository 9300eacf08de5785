// The adapters as a plan under construction leaves them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/kv_eviction_plan.h"
#include "schedule/plan/planning_view.h"

namespace loramux {

// Which adapters the plan evicts, pins, loads and wants. Keeps the sums of evictable pages up to date: to sum over all
// adapters would take most of the time of a plan. Owns none of its arguments.
class AdapterDraft {
 public:
  AdapterDraft(const PlanningView& view, const KvEvictionPlan& history) : view_(view), history_(history) {}

  // Starts a new plan from the present state.
  void Reset();

  // An earlier request in the queue needs the adapter. Called for each waiting request; usually it is marked already.
  void Want(AdapterGeneration generation) {
    std::uint8_t& flags = Flags(generation);
    if ((flags & kWanted) != 0) return;
    unwanted_pages_ -= EvictablePagesOf(view_.residency.Get(generation));
    flags |= kWanted;
  }
  // The plan evicts it from the device.
  void Evict(AdapterGeneration generation);
  // The plan lets a request begin (Pin) or end (Unpin) its use.
  void Pin(AdapterGeneration generation);
  void Unpin(AdapterGeneration generation);
  // It is loading, and enough layers have arrived to begin.
  void MarkUsable(AdapterGeneration generation) { Flags(generation) |= kUsable; }
  // The plan starts its load.
  void MarkLoad(AdapterGeneration generation) { Flags(generation) |= kLoadPlanned; }
  // The plan evicts its copy from the host tier, or takes that back.
  void MarkHostEviction(AdapterGeneration generation, bool evicted) {
    std::uint8_t& flags = Flags(generation);
    flags = static_cast<std::uint8_t>(evicted ? flags | kHostEvicted : flags & ~kHostEvicted);
  }

  bool IsEvicted(AdapterGeneration generation) const { return (FlagsOf(generation) & kEvicted) != 0; }
  bool IsWanted(AdapterGeneration generation) const { return (FlagsOf(generation) & kWanted) != 0; }
  bool IsUsable(AdapterGeneration generation) const { return (FlagsOf(generation) & kUsable) != 0; }
  bool IsLoadPlanned(AdapterGeneration generation) const { return (FlagsOf(generation) & kLoadPlanned) != 0; }
  bool IsHostEvicted(AdapterGeneration generation) const { return (FlagsOf(generation) & kHostEvicted) != 0; }
  // The plan loads the adapter in the slot, which needs its copy in the host tier, or evicts that copy already.
  bool HostCopyIsPlanned(std::size_t slot) const { return (flags_[slot] & (kLoadPlanned | kHostEvicted)) != 0; }
  // True if the adapter of the request is loading and not usable yet.
  bool IsLoading(const Request& request) const {
    return request.adapter != kBaseModel && view_.residency.Get(request.adapter).device == TierState::kLoading &&
           !IsUsable(request.adapter);
  }

  // Pins of the adapter after this plan, and the number of adapters with pins.
  std::int32_t pins(AdapterGeneration generation) const { return slot_pins_[view_.residency.SlotOf(generation)]; }
  std::int64_t distinct() const { return distinct_; }
  // True if admission of the request would exceed max_distinct_adapters.
  bool ExceedsDistinct(const Request& request) const {
    return request.adapter != kBaseModel && view_.options.max_distinct_adapters > 0 && pins(request.adapter) == 0 &&
           distinct_ >= view_.options.max_distinct_adapters;
  }

  // True if the plan may evict the adapter from the device, as far as pins and moves allow.
  bool Evictable(const AdapterResidency& adapter) const {
    if (adapter.locked || slot_pins_[adapter.slot] != 0 || (flags_[adapter.slot] & kEvicted) != 0) return false;
    // While pages of its history move, they cannot be evicted, and so the adapter cannot either.
    return !view_.pages.branches().HasMoves(adapter.slot);
  }
  // Pages of the adapter that may be evicted from the device. Tests the residency first, which usually decides.
  std::int64_t EvictablePagesOf(const AdapterResidency& adapter) const {
    return adapter.device == TierState::kResident && Evictable(adapter) ? adapter.pages : 0;
  }
  // Sum over all adapters, or over those that no earlier request wants.
  std::int64_t evictable_pages(bool even_wanted) const { return even_wanted ? evictable_pages_ : unwanted_pages_; }
  // True if history on the device depends on the adapter: without it, that history would be unusable.
  bool CarriesHistory(AdapterGeneration generation);
  // Adapters of which the plan released a pin. May repeat, and include pinned ones.
  std::span<const AdapterGeneration> released() const { return released_; }

 private:
  static constexpr std::uint8_t kEvicted = 1, kWanted = 2, kHostEvicted = 4, kLoadPlanned = 8, kUsable = 16;

  // Adapters on the device with the content of a shared branch. Valid if `plan` is the number of this plan.
  struct Residents {
    std::uint64_t plan = 0;
    std::int32_t count = 0;
  };
  std::uint8_t& Flags(AdapterGeneration generation) { return flags_[view_.residency.SlotOf(generation)]; }
  std::uint8_t FlagsOf(AdapterGeneration generation) const { return flags_[view_.residency.SlotOf(generation)]; }
  // Adds (sign 1) or subtracts (-1) the evictable pages of the adapter.
  void CountEvictable(AdapterGeneration generation, std::int64_t sign);
  // Adapters with the content of the branch that are on the device and stay there in this plan.
  std::int32_t& ResidentsOf(BranchId branch);

  const PlanningView& view_;
  const KvEvictionPlan& history_;
  std::vector<std::int32_t> slot_pins_;  // by residency slot
  std::vector<std::uint8_t> flags_;      // by residency slot
  std::int64_t distinct_ = 0;
  std::int64_t evictable_pages_ = 0, unwanted_pages_ = 0;
  std::vector<AdapterGeneration> released_;
  std::vector<Residents> residents_;  // by branch
  std::uint64_t plan_ = 0;            // number of this plan
};

}  // namespace loramux
