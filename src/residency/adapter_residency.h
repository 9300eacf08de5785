// The residency manager: which adapters are on disk (always), in the host tier and on the device. Owned and used by the
// engine thread alone.
//
// The scheduler chooses what to load and what to evict; this class carries it out and keeps the accounts. A load is a
// chain of transfers: disk -> host -> device, or disk -> device where the host tier has no room. A registered adapter
// may also be read into the host tier alone (BeginHostRead); a load that begins meanwhile goes on from there.
//
// Invariants (CheckIntegrity):
// - An adapter holds exactly layout.pages pages in each tier where it is loading or resident, and none elsewhere.
// - A used adapter (by running requests) is resident on the device, arriving there, or failed to arrive there (until
// EndFailedLoads).
// - A used adapter is never evicted, nor is one that an operator keeps.
// - A retired adapter without requests is dropped: it is unknown, and its pages are free.
// - A failed load of a used adapter keeps its pages until the users are gone, because a step may still read them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "adapter/registry.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "memory/page_pool.h"
#include "residency/adapter_stats.h"
#include "residency/transfer.h"

namespace loramux {

// The state of an adapter in one tier.
enum class TierState : std::uint8_t { kAbsent, kLoading, kResident };

// The properties of one adapter that policies may use. Planning reads those of every idle adapter, so they fill the
// first cache line.
struct alignas(64) AdapterResidency {
  std::shared_ptr<const AdapterVersion> version;
  TierState device = TierState::kAbsent;
  TierState host = TierState::kAbsent;
  std::uint32_t slot = 0;       // index in All(); reused after the adapter is dropped
  std::int32_t references = 0;  // requests in the engine that use it, waiting or running
  std::int32_t users = 0;       // running requests that use it
  bool kept = false;            // an operator keeps it on the device (the API's `pinned`): never evicted
  bool retired = false;         // its name is gone; dropped when its last request ends
  bool registered = false;      // Register was called
  std::int32_t uses_here = 0;   // requests that began to use it since it last came to the device
  TimeNs last_use = 0;          // when a request last began or ended to use it
  std::int64_t uses = 0;        // requests that began to use it
  std::int64_t pages = 0;       // version->layout.pages
  // Index in IdleAdapters(); the largest number if it is not idle.
  std::uint32_t idle_position = std::numeric_limits<std::uint32_t>::max();
  std::vector<PageHandle> device_pages, host_pages;
  std::uint64_t load_sequence = 0;  // changes with each load to the device
  TimeNs load_started = 0;
  TimeNs resident_since = 0;       // when it last arrived on the device
  TimeNs last_load_time = 0;       // time of its last load to the device, from the decision; 0: none yet
  std::uint64_t host_arrival = 0;  // ascends with the arrivals in the host tier, of all adapters
  bool via_host = false;
  bool ahead = false;      // loaded for no particular request: the load does not count as a use
  bool from_disk = false;  // its last load
  // Progress of the transfer in flight and its start; null if there is none.
  std::shared_ptr<LayerProgress> progress;
  TimeNs transfer_started = 0;
  bool by_layer = false;      // the transfer publishes layers that may be used at once: the adapter is arriving
  bool read_in_host = false;  // the step in flight computes from the copy in the host tier
  bool failed = false;        // the load failed, and users hold its pages
  std::int64_t loads = 0;     // to the device, successful

  // On the device, neither used nor kept.
  bool idle() const { return idle_position != std::numeric_limits<std::uint32_t>::max(); }
  TierState& in(Tier tier) { return tier == Tier::kHost ? host : device; }
  std::vector<PageHandle>& pages_in(Tier tier) { return tier == Tier::kHost ? host_pages : device_pages; }
  // Nothing keeps it any longer.
  bool unwanted() const { return retired && references == 0 && !kept; }
  // Whether a transfer is in flight of which the first layers may have arrived. An arriving adapter may be used:
  // computed with. The results are valid once the transfer has ended, or if they came from a whole copy in the host
  // tier.
  bool arriving() const { return device == TierState::kLoading && by_layer; }
  // Whether a load copies from a whole copy in the host tier. That copy stays as long.
  bool on_way_from_host() const { return arriving() && host == TierState::kResident; }
};

// Carries out loads and evictions of adapters and keeps their accounts.
class ResidencyManager {
 public:
  // Owns none of the arguments. Without a host tier, `host` has no pages. `disk_by_layer`: adapters that are read from
  // disk may be used layer by layer (TransferJob::by_layer), in the tier that they are read into. REQUIRES: the pages
  // of both pools have the same size.
  ResidencyManager(PagePool& device, PagePool& host, PageTransfer& transfer, bool disk_by_layer = false);

  // Makes the adapter known. Idempotent. `in_host`: also with a whole copy in the host tier, as if it had been read
  // before; for simulations, because the content of its pages is arbitrary. Returns whether that copy was made: not if
  // the tier has too few free pages, or the adapter is in a tier already.
  bool Add(std::shared_ptr<const AdapterVersion> version, bool in_host = false);
  // The adapter has a name, and a copy in the host tier is wanted, until it was made once (WantedInHost). REQUIRES:
  // known.
  void Register(AdapterGeneration generation);
  // A request that uses the adapter arrives (Acquire) or ends (Release). A retired adapter is dropped with its last
  // request, which frees its pages in both tiers. REQUIRES: known; for Release: Acquire was called, and the request is
  // not running.
  void Acquire(AdapterGeneration generation);
  void Release(AdapterGeneration generation);
  // The adapter's name is gone. Lets it go and drops it: at once, after its last request, or after the load in
  // progress. Ignores unknown adapters.
  void Retire(AdapterGeneration generation);
  // An operator keeps the adapter on the device (`keep`) or no longer does. The scheduler plans the load. Idempotent.
  // REQUIRES: known.
  void Keep(AdapterGeneration generation, bool keep);

  // What others are told; each may be empty.
  struct Listener {
    // The adapter is about to be dropped; its pages are not freed yet.
    std::function<void(const AdapterResidency&)> dropped;
    // A load failed; its pages are free.
    std::function<void(const AdapterResidency&)> failed;
    // A load succeeded. `took`: the time since it began or since the previous load ended, whichever is later, which is
    // the time of this load alone.
    std::function<void(const AdapterResidency&, TimeNs took)> loaded;
  };
  void set_listener(Listener listener) { listener_ = std::move(listener); }

  // The state of one adapter. Planning calls this several times for each waiting request. REQUIRES: known, not
  // kBaseModel.
  const AdapterResidency& Get(AdapterGeneration generation) const {
    CHECK(Knows(generation));
    return *by_slot_[slot_of_[generation.value]];
  }
  // Whether the adapter was added and not dropped.
  bool Knows(AdapterGeneration generation) const {
    return generation.value < slot_of_.size() && slot_of_[generation.value] != kNoSlot;
  }
  // Index in All(). Slots are reused, so it stays below the largest number of adapters at one time. REQUIRES: known.
  std::size_t SlotOf(AdapterGeneration generation) const { return slot_of_[generation.value]; }
  // All known adapters by slot; entries without a version are free slots.
  const std::deque<AdapterResidency>& All() const { return adapters_; }
  // Adapters that an operator keeps, in the order in which that began.
  std::span<const AdapterGeneration> Kept() const { return kept_; }
  // Adapters resident in the tier. The order is arbitrary but deterministic.
  std::span<const AdapterGeneration> Residents(Tier tier) const { return residents_[tier == Tier::kHost]; }
  // Adapters resident on the device that are neither used nor kept, and the sum of their pages. The order is
  // arbitrary but deterministic.
  std::span<const AdapterGeneration> IdleAdapters() const { return idle_; }
  std::int64_t idle_pages() const { return idle_pages_; }
  // Adapters that are arriving, in the order of their transfers.
  std::span<const AdapterGeneration> Arriving() const { return arriving_; }
  // Appends the slots whose adapter's state, use or requests have changed since the last call, each once. The adapter
  // may be gone.
  void TakeChanges(std::vector<std::uint32_t>& out);
  // The pools given to the constructor. REQUIRES: kDevice or kHost.
  PagePool& pool(Tier tier) const { return tier == Tier::kHost ? host_ : device_; }

  // Starts a load to the device. `ahead`: for no particular request. REQUIRES: the device state is kAbsent, and the
  // device pool has enough free pages. With `via_host`, if the adapter is not host-resident, the host pool has enough
  // too.
  void BeginLoad(AdapterGeneration generation, bool via_host, TimeNs now, bool ahead = false);
  // Starts to read a registered adapter into the host tier alone. REQUIRES: it is in no tier, the host pool has enough
  // free pages, and !reading_ahead().
  void BeginHostRead(AdapterGeneration generation, TimeNs now);
  // Whether such a read is in flight.
  bool reading_ahead() const { return host_read_ != kBaseModel; }
  // Registered adapters that await a copy in the host tier, in the order of registration.
  std::span<const AdapterGeneration> WantedInHost() const { return wanted_in_host_; }
  // Takes an adapter out of a tier. It stays in the other one if it is there. REQUIRES: resident in the tier; on the
  // device, unused; in the host tier, no copy to the device is in flight, and no step reads it there.
  void Evict(AdapterGeneration generation, Tier tier);
  // The step that is submitted next computes from the copy in the host tier, which therefore stays until EndHostReads.
  // REQUIRES: arriving, and host-resident or being read into the host tier.
  void ReadInHost(AdapterGeneration generation);
  // That step has ended.
  void EndHostReads();

  // A running request begins (Use) or ends (EndUse) its use. REQUIRES (Use): device-resident or arriving.
  void Use(AdapterGeneration generation, TimeNs now);
  void EndUse(AdapterGeneration generation, TimeNs now);

  // A load that failed, with its error.
  struct LoadFailure {
    AdapterGeneration generation;
    Error error;
  };
  // Collects finished transfers, continues their chains, and reads the progress of arriving adapters. Returns true if
  // anything changed. Appends failed loads to `failures`. A failed adapter is kAbsent and its pages are free, unless it
  // is used. A used one is cleaned up by EndFailedLoads. Transfers of history that have ended go to `history`; it
  // may be empty if there are none.
  bool Poll(TimeNs now, std::vector<LoadFailure>& failures,
            const std::function<void(const TransferCompletion&)>& history = {});
  // Frees the pages of failed loads. Call it after the step in flight. REQUIRES: the failed adapters are not used.
  void EndFailedLoads();

  // Counters and current state.
  const AdapterStats& Stats() const { return stats_; }
  // Aborts if an invariant is violated.
  void CheckIntegrity() const;

 private:
  AdapterResidency& At(AdapterGeneration generation);
  // Starts the next transfer of a load.
  void SubmitTransfer(AdapterResidency& adapter, Tier from, Tier to, TimeNs now);
  // A transfer has ended: begins the next one of its chain, or ends the load.
  void EndTransfer(TransferCompletion done, TimeNs now, std::vector<LoadFailure>& failures);
  // Drops the adapter if it is retired and unused; cancels its load first if there is one.
  void DropIfUnused(AdapterResidency& adapter);
  // Makes the adapter device-resident and counts the load.
  void FinishLoad(AdapterResidency& adapter, TimeNs now);
  // Frees the pages of a load, or of a read into the host tier, that failed or was cancelled.
  void GiveUpLoad(AdapterResidency& adapter);
  // Takes pages of the tier for a load.
  void TakePages(AdapterResidency& adapter, Tier tier);
  // The adapter's pages in the tier are complete.
  void Arrive(AdapterResidency& adapter, Tier tier);
  // Frees its pages in the tier, if it has any there.
  void DropPages(AdapterResidency& adapter, Tier tier);
  // Notes the adapter for TakeChanges.
  void NoteChange(const AdapterResidency& adapter);
  // Updates idle_ after a change of residency, users or keepers.
  void UpdateIdle(AdapterResidency& adapter);

  PagePool& device_;
  PagePool& host_;
  PageTransfer& transfer_;
  static constexpr std::uint32_t kNoSlot = std::numeric_limits<std::uint32_t>::max();

  std::deque<AdapterResidency> adapters_;   // a deque: executors hold pointers to entries while others are added
  std::vector<AdapterResidency*> by_slot_;  // pointers into adapters_: one memory access where the deque needs three
  std::vector<std::uint32_t> slot_of_;      // by generation; kNoSlot: unknown. Four bytes for each generation ever
  std::vector<std::uint32_t> free_slots_;
  std::array<std::vector<AdapterGeneration>, 2> residents_;  // on the device; in the host tier
  std::vector<AdapterGeneration> kept_, arriving_, idle_, wanted_in_host_;
  AdapterGeneration host_read_ = kBaseModel;  // BeginHostRead; kBaseModel: none is in flight
  std::int64_t idle_pages_ = 0;
  std::vector<std::uint32_t> changes_;     // for TakeChanges
  std::vector<bool> is_listed_;            // by slot: in changes_
  std::vector<AdapterGeneration> failed_;  // used when their loads failed
  std::vector<AdapterGeneration> read_in_host_;
  const bool disk_by_layer_;
  Listener listener_;
  TimeNs last_load_end_ = 0;
  std::uint64_t next_load_sequence_ = 0, next_host_arrival_ = 0;
  AdapterStats stats_;
};

}  // namespace loramux
