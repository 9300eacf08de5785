// Which adapters are where: disk (always), host tier, device. Owned and used by the engine thread alone.
//
// The choice of what to load and what to evict is made elsewhere (schedule); this class carries it out and keeps the
// accounts. A load is a chain of transfers: disk -> host -> device, or disk -> device where the host tier has no room.
//
// Invariants (CheckIntegrity): an adapter holds exactly layout.pages pages in a tier while it is loading to it or
// resident in it, and none otherwise; only a device-resident adapter is pinned, or one that is arriving there; a pinned
// one is never evicted, nor is one that the operator locked; a retired adapter that no request refers to is unknown
// again, with its pages free. Nobody is told of the end of a failed load before its pins are gone: a step may still
// read its pages.
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
#include "adapter/transfer.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "memory/page_pool.h"

namespace loramux {

enum class TierState : std::uint8_t { kAbsent, kLoading, kResident };

// Upper bounds of the buckets of AdapterStats::load_times, which has one more for longer ones.
inline constexpr std::array<TimeNs, 16> kLoadTimeBounds = {
    1 * kNsPerMs,      2 * kNsPerMs,      5 * kNsPerMs,      10 * kNsPerMs,     20 * kNsPerMs,    50 * kNsPerMs,
    100 * kNsPerMs,    200 * kNsPerMs,    500 * kNsPerMs,    1 * kNsPerSecond,  2 * kNsPerSecond, 5 * kNsPerSecond,
    10 * kNsPerSecond, 20 * kNsPerSecond, 60 * kNsPerSecond, 120 * kNsPerSecond};

struct AdapterStats {
  std::int64_t device_resident = 0, host_resident = 0, loading = 0;
  std::int64_t device_loads = 0, disk_loads = 0, load_failures = 0;
  // of whole pages that arrived
  std::int64_t disk_to_host_bytes = 0, disk_to_device_bytes = 0, host_to_device_bytes = 0;
  // requests that came in: where their adapter was then
  std::int64_t asked = 0, asked_on_device = 0, asked_in_host = 0;
  std::int64_t device_evictions = 0, host_evictions = 0;
  std::int64_t cancelled_loads = 0;  // nobody wanted them any more
  TimeNs load_time_total = 0;        // from the decision to device-resident, over device_loads
  std::array<std::int64_t, kLoadTimeBounds.size() + 1> load_times = {};  // how many took how long
  std::int64_t known = 0;                                                // adapters in All(), wherever they are
  std::int64_t locked = 0, dropped = 0;
};

// What the policies may know of one adapter. Planning weighs every idle one: what it reads of it is the first cache
// line.
struct alignas(64) AdapterResidency {
  std::shared_ptr<const AdapterVersion> version;
  TierState device = TierState::kAbsent;
  TierState host = TierState::kAbsent;
  std::uint32_t slot = 0;       // its place in All(): given to others after it is dropped
  std::int32_t references = 0;  // requests in the engine that use it, waiting or running
  std::int32_t pins = 0;        // running requests that use it
  bool locked = false;          // by the operator ("pinned"): to be on the device, never evicted
  bool retired = false;         // its name is gone: dropped when the last request that refers to it has ended
  TimeNs last_use = 0;          // when a request last began or ended to use it
  std::int64_t uses = 0;        // requests that began to use it
  std::int64_t pages = 0;       // version->layout.pages
  // in IdleAdapters(); the largest number: not there
  std::uint32_t idle_position = std::numeric_limits<std::uint32_t>::max();
  std::vector<PageHandle> device_pages, host_pages;
  std::uint64_t load_sequence = 0;  // changes with each load to the device
  TimeNs load_started = 0;
  TimeNs resident_since = 0;  // on the device, the last time that it came there
  bool via_host = false;
  bool ahead = false;      // the load is for nobody in particular: it is no use
  bool from_disk = false;  // its last load
  // Of the transfer in flight, and since when: null where there is none.
  std::shared_ptr<LayerProgress> progress;
  TimeNs transfer_started = 0;
  bool to_device = false;  // it copies from the host tier, layer by layer: the adapter is arriving
  bool failed = false;     // while pins hold its pages

  bool idle() const { return idle_position != std::numeric_limits<std::uint32_t>::max(); }
  // Its first layers may be there already. It may be pinned, and what is computed with it may be used once it is
  // resident.
  bool arriving() const { return device == TierState::kLoading && to_device; }
};

class ResidencyManager {
 public:
  // Does not own. REQUIRES: both pools have pages of the same size; host may be null (no host tier).
  ResidencyManager(PagePool* device, PagePool* host, AdapterTransfer* transfer);

  // Makes the adapter known. Idempotent.
  void Add(std::shared_ptr<const AdapterVersion> version);
  // A request that uses it comes in or ends. A retired adapter is dropped with its last request: both tiers are freed.
  // REQUIRES: known; Release: Acquire was called, and the request is not running.
  void Acquire(AdapterGeneration generation);
  void Release(AdapterGeneration generation);
  // The adapter's name is gone: it is unlocked, and dropped at once or after its last request, or after the load that
  // is under way. Unknown ones are ignored.
  void Retire(AdapterGeneration generation);
  // The operator wants it on the device for good (the scheduler plans the load), or no longer. Idempotent. REQUIRES:
  // known.
  void Lock(AdapterGeneration generation);
  void Unlock(AdapterGeneration generation);

  // Called when an adapter is about to be dropped, with its memory as it is. May be empty.
  void set_on_drop(std::function<void(const AdapterResidency&)> on_drop) { on_drop_ = std::move(on_drop); }

  // Called when a load has ended well, with the time since it began, or since the load before it ended: how long it
  // alone took. May be empty.
  void set_on_load(std::function<void(const AdapterResidency&, TimeNs took)> on_load) { on_load_ = std::move(on_load); }

  // REQUIRES: known, not kBaseModel.
  // several times for each request that waits, in a plan
  const AdapterResidency& Get(AdapterGeneration generation) const {
    CHECK(Knows(generation));
    return *by_slot_[slot_of_[generation.value]];
  }
  bool Knows(AdapterGeneration generation) const {
    return generation.value < slot_of_.size() && slot_of_[generation.value] != kNoSlot;
  }
  // Index in All(). REQUIRES: known. Slots are used again, so this stays as small as there are adapters at one time.
  std::size_t SlotOf(AdapterGeneration generation) const { return slot_of_[generation.value]; }
  // All known adapters by slot; entries without a version are free slots.
  const std::deque<AdapterResidency>& All() const { return adapters_; }
  // In the order in which they were locked.
  std::span<const AdapterGeneration> Locked() const { return locked_; }
  // Generations that are resident on the device, in no particular but deterministic order.
  std::span<const AdapterGeneration> DeviceResidents() const { return device_residents_; }
  std::span<const AdapterGeneration> HostResidents() const { return host_residents_; }
  // Of the residents on the device those that are neither pinned nor locked, and their pages; likewise ordered.
  std::span<const AdapterGeneration> IdleAdapters() const { return idle_; }
  std::int64_t idle_pages() const { return idle_pages_; }
  std::int64_t loads_in_flight() const { return loads_in_flight_; }
  // Generations that are arriving on the device from the host tier, in the order in which their transfers began.
  std::span<const AdapterGeneration> Arriving() const { return arriving_; }
  PagePool* device() const { return device_; }
  PagePool* host() const { return host_; }

  // Starts a load to the device. REQUIRES: device state kAbsent and enough free pages in the device pool; if via_host
  // and the adapter is not host-resident, enough free pages in the host pool too. `ahead`: for nobody in particular.
  void BeginLoad(AdapterGeneration generation, bool via_host, TimeNs now, bool ahead = false);
  // Takes a device-resident, unpinned adapter off the device. It may stay in the host tier.
  void EvictFromDevice(AdapterGeneration generation);
  // Takes a host-resident adapter that is not being copied to the device off the host tier.
  void EvictFromHost(AdapterGeneration generation);

  // A running request begins or ends to use it. REQUIRES (Pin): device-resident or arriving.
  void Pin(AdapterGeneration generation, TimeNs now);
  void Unpin(AdapterGeneration generation, TimeNs now);

  struct LoadFailure {
    AdapterGeneration generation;
    Error error;
  };
  // Collects finished transfers, goes on with their chains, looks at the progress of those that arrive. True if
  // anything changed; failed loads are appended to `failures`: their pages are free and the state is kAbsent, unless
  // the adapter is pinned; then that waits for EndFailedLoads, which the caller calls after the step in flight, when it
  // has unpinned them.
  bool Poll(TimeNs now, std::vector<LoadFailure>& failures);
  void EndFailedLoads();

  AdapterStats Stats() const;
  void CheckIntegrity() const;

 private:
  AdapterResidency& At(AdapterGeneration generation);
  void SubmitTransfer(AdapterResidency& adapter, TransferKind kind, TimeNs now);
  void EndTransfer(AdapterResidency& adapter);
  void CancelLoad(AdapterResidency& adapter);
  void DropIfUnused(AdapterResidency& adapter);
  bool Unwanted(const AdapterResidency& adapter) const {
    return adapter.retired && adapter.references == 0 && !adapter.locked;
  }
  std::int64_t Bytes(const AdapterResidency& adapter) const {
    return adapter.version->layout.pages * device_->page_bytes();
  }
  void FinishLoad(AdapterResidency& adapter, TimeNs now);
  void GiveUpLoad(AdapterResidency& adapter);
  void DropDevicePages(AdapterResidency& adapter);
  void UpdateIdle(AdapterResidency& adapter);
  void DropHostPages(AdapterResidency& adapter);

  PagePool* device_;
  PagePool* host_;
  AdapterTransfer* transfer_;
  static constexpr std::uint32_t kNoSlot = std::numeric_limits<std::uint32_t>::max();

  std::deque<AdapterResidency> adapters_;   // a deque: executors hold pointers to entries while new ones are added
  std::vector<AdapterResidency*> by_slot_;  // to them: one load where the deque takes three
  std::vector<std::uint32_t> slot_of_;      // by generation; kNoSlot: unknown. Four bytes for each generation ever.
  std::vector<std::uint32_t> free_slots_;
  std::vector<AdapterGeneration> device_residents_, host_residents_, locked_, arriving_, idle_;
  std::int64_t idle_pages_ = 0;
  std::vector<AdapterGeneration> failed_;  // pinned
  std::function<void(const AdapterResidency&)> on_drop_;
  std::function<void(const AdapterResidency&, TimeNs)> on_load_;
  TimeNs last_load_end_ = 0;
  std::int64_t loads_in_flight_ = 0;
  std::uint64_t next_load_sequence_ = 0;
  AdapterStats totals_;
};

}  // namespace loramux
