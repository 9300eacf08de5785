#include "residency/adapter_residency.h"

#include <algorithm>

#include "base/check.h"

namespace loramux {
namespace {

constexpr std::uint32_t kNotIdle = UINT32_MAX;

PageSet PagesIn(Tier tier, const PagePool& pool, const std::vector<PageHandle>& handles) {
  PageSet set{.tier = tier, .pages = {}};
  set.pages.reserve(handles.size());
  for (const PageHandle handle : handles) {
    CHECK(pool.IsCurrent(handle));
    set.pages.push_back(handle.index);
  }
  return set;
}

std::int64_t BytesOf(const AdapterResidency& adapter, const PagePool& pool) {
  return adapter.version->layout.pages * pool.page_bytes();
}

void Erase(std::vector<AdapterGeneration>& list, AdapterGeneration generation) {
  const auto found = std::find(list.begin(), list.end(), generation);
  CHECK(found != list.end());
  list.erase(found);
}

}  // namespace

ResidencyManager::ResidencyManager(PagePool& device, PagePool& host, PageTransfer& transfer, bool disk_by_layer)
    : device_(device), host_(host), transfer_(transfer), disk_by_layer_(disk_by_layer) {
  CHECK_EQ(device_.page_bytes(), host_.page_bytes());
}

bool ResidencyManager::Add(std::shared_ptr<const AdapterVersion> version, bool in_host) {
  const std::size_t generation = version->generation.value;
  if (in_host) {
    const AdapterGeneration of = version->generation;
    Add(std::move(version));
    AdapterResidency& adapter = At(of);
    if (adapter.device != TierState::kAbsent || adapter.host != TierState::kAbsent) return false;
    if (host_.free_pages() < adapter.pages) return false;
    TakePages(adapter, Tier::kHost);
    Arrive(adapter, Tier::kHost);
    return true;
  }
  if (Knows(version->generation)) return false;
  if (generation >= slot_of_.size()) slot_of_.resize(generation + 1, kNoSlot);
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(adapters_.size()));
    by_slot_.push_back(&adapters_.emplace_back());
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slot_of_[generation] = slot;
  adapters_[slot].pages = version->layout.pages;
  adapters_[slot].version = std::move(version);
  adapters_[slot].slot = slot;
  if (is_listed_.size() < adapters_.size()) is_listed_.resize(adapters_.size(), false);
  changes_.reserve(by_slot_.capacity());  // later changes allocate nothing
  ++stats_.known;
  return false;
}

void ResidencyManager::Register(AdapterGeneration generation) {
  AdapterResidency& adapter = At(generation);
  if (adapter.registered) return;
  adapter.registered = true;
  NoteChange(adapter);
  if (adapter.host != TierState::kResident) wanted_in_host_.push_back(generation);
}

void ResidencyManager::Acquire(AdapterGeneration generation) {
  AdapterResidency& adapter = At(generation);
  ++adapter.references;
  NoteChange(adapter);
  ++stats_.asked;
  if (adapter.device == TierState::kResident) {
    ++stats_.asked_on_device;
  } else {
    stats_.asked_in_host += adapter.host == TierState::kResident;
  }
}

void ResidencyManager::Release(AdapterGeneration generation) {
  AdapterResidency& adapter = At(generation);
  CHECK_GT(adapter.references, 0);
  --adapter.references;
  NoteChange(adapter);
  DropIfUnused(adapter);
}

void ResidencyManager::Retire(AdapterGeneration generation) {
  if (!Knows(generation)) return;
  Keep(generation, false);
  AdapterResidency& adapter = At(generation);
  adapter.retired = true;
  DropIfUnused(adapter);
}

void ResidencyManager::Keep(AdapterGeneration generation, bool keep) {
  AdapterResidency& adapter = At(generation);
  if (adapter.kept == keep) return;
  adapter.kept = keep;
  if (keep)
    kept_.push_back(generation);
  else
    Erase(kept_, generation);
  stats_.kept = static_cast<std::int64_t>(kept_.size());
  UpdateIdle(adapter);
}

// The pages belong to the transfer until its completion is polled; a request that wants the adapter meanwhile loads it
// again afterwards. Only the load of a retired adapter is cancelled. Clients may give up before a slow load ends and
// then retry, and the load must not restart each time.
void ResidencyManager::DropIfUnused(AdapterResidency& adapter) {
  if (!adapter.unwanted()) return;
  if (adapter.device == TierState::kLoading || adapter.host == TierState::kLoading) {
    if (adapter.progress != nullptr) adapter.progress->Cancel();
    return;
  }
  CHECK_EQ(adapter.users, 0);
  if (listener_.dropped) listener_.dropped(adapter);
  NoteChange(adapter);
  std::erase(wanted_in_host_, adapter.version->generation);
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) DropPages(adapter, tier);
  free_slots_.push_back(adapter.slot);
  slot_of_[adapter.version->generation.value] = kNoSlot;
  adapter = AdapterResidency{};
  --stats_.known;
  ++stats_.dropped;
}

AdapterResidency& ResidencyManager::At(AdapterGeneration generation) {
  return const_cast<AdapterResidency&>(Get(generation));
}

void ResidencyManager::BeginLoad(AdapterGeneration generation, bool via_host, TimeNs now, bool ahead) {
  AdapterResidency& adapter = At(generation);
  CHECK(adapter.device == TierState::kAbsent);
  TakePages(adapter, Tier::kDevice);
  adapter.load_started = now;
  adapter.load_sequence = ++next_load_sequence_;
  adapter.via_host = via_host;
  adapter.ahead = ahead;
  adapter.from_disk = adapter.host != TierState::kResident;
  ++stats_.loading;
  if (adapter.host == TierState::kResident) {
    SubmitTransfer(adapter, Tier::kHost, Tier::kDevice, now);
  } else if (adapter.host == TierState::kLoading) {
    CHECK(host_read_ == generation);  // it goes on from there (EndTransfer)
  } else if (via_host) {
    TakePages(adapter, Tier::kHost);
    SubmitTransfer(adapter, Tier::kDisk, Tier::kHost, now);
  } else {
    SubmitTransfer(adapter, Tier::kDisk, Tier::kDevice, now);
  }
}

void ResidencyManager::BeginHostRead(AdapterGeneration generation, TimeNs now) {
  AdapterResidency& adapter = At(generation);
  CHECK(adapter.registered && adapter.device == TierState::kAbsent && adapter.host == TierState::kAbsent);
  CHECK(!reading_ahead());
  host_read_ = generation;
  TakePages(adapter, Tier::kHost);
  SubmitTransfer(adapter, Tier::kDisk, Tier::kHost, now);
}

// The id of a transfer is the adapter's generation: an adapter has at most one transfer in flight.
void ResidencyManager::SubmitTransfer(AdapterResidency& adapter, Tier from, Tier to, TimeNs now) {
  TransferJob job;
  job.id = adapter.version->generation.value;
  job.adapter = adapter.version;
  job.page_bytes = static_cast<std::size_t>(device_.page_bytes());
  job.from = from == Tier::kDisk ? PageSet{Tier::kDisk, {}} : PagesIn(from, host_, adapter.host_pages);
  job.to = to == Tier::kHost ? PagesIn(to, host_, adapter.host_pages) : PagesIn(to, device_, adapter.device_pages);
  if (from == Tier::kDisk) ++stats_.disk_loads;
  adapter.by_layer = from == Tier::kHost || (disk_by_layer_ && adapter.device == TierState::kLoading);
  job.by_layer = adapter.by_layer;
  adapter.transfer_started = now;
  job.progress = adapter.progress =
      std::make_shared<LayerProgress>(static_cast<std::int32_t>(adapter.version->layout.layer_pages.size()));
  if (adapter.by_layer) arriving_.push_back(adapter.version->generation);
  transfer_.Submit(std::move(job));
}

bool ResidencyManager::Poll(TimeNs now, std::vector<LoadFailure>& failures,
                            const std::function<void(const TransferCompletion&)>& history) {
  bool changed = false;
  while (auto done = transfer_.Poll()) {
    changed = true;
    if (IsOfHistory(done->id))
      history(*done);
    else
      EndTransfer(*std::move(done), now, failures);
  }
  for (const AdapterGeneration generation : arriving_) At(generation).progress->Look();
  return changed;
}

void ResidencyManager::EndTransfer(TransferCompletion done, TimeNs now, std::vector<LoadFailure>& failures) {
  AdapterResidency& adapter = At(AdapterGeneration{static_cast<std::uint32_t>(done.id)});
  if (adapter.by_layer) Erase(arriving_, adapter.version->generation);
  adapter.by_layer = false;
  adapter.progress = nullptr;
  const AdapterGeneration generation = adapter.version->generation;
  if (host_read_ == generation) host_read_ = kBaseModel;
  const bool loads = adapter.device == TierState::kLoading;
  if (done.cancelled) {
    CHECK_EQ(adapter.users, 0);
    GiveUpLoad(adapter);
    stats_.cancelled_loads += loads;
  } else if (done.error) {
    std::erase(wanted_in_host_, generation);
    adapter.failed = adapter.users > 0;
    if (adapter.failed)
      failed_.push_back(generation);
    else
      GiveUpLoad(adapter);
    ++stats_.load_failures;
    if (loads) failures.push_back({generation, std::move(*done.error)});  // else a request's own load will say it
  } else if (adapter.host == TierState::kLoading) {
    Arrive(adapter, Tier::kHost);
    stats_.disk_to_host_bytes += BytesOf(adapter, device_);
    if (loads && adapter.unwanted()) {  // retired during the load, and no request waits for it
      GiveUpLoad(adapter);
      ++stats_.cancelled_loads;
    } else if (loads) {
      SubmitTransfer(adapter, Tier::kHost, Tier::kDevice, now);
    }
  } else {
    FinishLoad(adapter, now);
  }
  DropIfUnused(adapter);
}

void ResidencyManager::FinishLoad(AdapterResidency& adapter, TimeNs now) {
  adapter.resident_since = now;
  (adapter.host == TierState::kResident ? stats_.host_to_device_bytes : stats_.disk_to_device_bytes) +=
      BytesOf(adapter, device_);
  // It was loaded for a request, so it must not be the next victim.
  if (!adapter.ahead || adapter.references > 0) adapter.last_use = now;
  Arrive(adapter, Tier::kDevice);
  --stats_.loading;
  ++adapter.loads;
  ++stats_.device_loads;
  const TimeNs took = now - adapter.load_started;
  stats_.load_time_total += took;
  adapter.last_load_time = took;
  if (listener_.loaded) listener_.loaded(adapter, now - std::max(adapter.load_started, last_load_end_));
  last_load_end_ = now;
  const auto bucket = std::lower_bound(kLoadTimeBounds.begin(), kLoadTimeBounds.end(), took);
  ++stats_.load_times[static_cast<std::size_t>(bucket - kLoadTimeBounds.begin())];
}

void ResidencyManager::GiveUpLoad(AdapterResidency& adapter) {
  const bool loads = adapter.device == TierState::kLoading;
  DropPages(adapter, Tier::kDevice);
  if (adapter.host == TierState::kLoading) DropPages(adapter, Tier::kHost);
  if (!loads) return;
  --stats_.loading;
  if (listener_.failed) listener_.failed(adapter);
}

void ResidencyManager::EndFailedLoads() {
  for (const AdapterGeneration generation : failed_) {
    AdapterResidency& adapter = At(generation);
    CHECK_EQ(adapter.users, 0);
    adapter.failed = false;
    GiveUpLoad(adapter);
    DropIfUnused(adapter);
  }
  failed_.clear();
}

void ResidencyManager::TakePages(AdapterResidency& adapter, Tier tier) {
  std::vector<PageHandle>& pages = adapter.pages_in(tier);
  pages.resize(static_cast<std::size_t>(adapter.pages));
  CHECK(pool(tier).Allocate(PageCategory::kAdapter, pages));
  adapter.in(tier) = TierState::kLoading;
  NoteChange(adapter);
}

void ResidencyManager::Arrive(AdapterResidency& adapter, Tier tier) {
  adapter.in(tier) = TierState::kResident;
  residents_[tier == Tier::kHost].push_back(adapter.version->generation);
  ++(tier == Tier::kHost ? stats_.host_resident : stats_.device_resident);
  if (tier == Tier::kHost) {
    adapter.host_arrival = ++next_host_arrival_;
    std::erase(wanted_in_host_, adapter.version->generation);
  }
  NoteChange(adapter);
  UpdateIdle(adapter);
}

void ResidencyManager::DropPages(AdapterResidency& adapter, Tier tier) {
  if (adapter.in(tier) == TierState::kAbsent) return;
  if (adapter.in(tier) == TierState::kResident) {
    Erase(residents_[tier == Tier::kHost], adapter.version->generation);
    --(tier == Tier::kHost ? stats_.host_resident : stats_.device_resident);
  }
  pool(tier).Free(PageCategory::kAdapter, adapter.pages_in(tier));
  adapter.pages_in(tier).clear();
  adapter.in(tier) = TierState::kAbsent;
  NoteChange(adapter);
  UpdateIdle(adapter);
}

void ResidencyManager::NoteChange(const AdapterResidency& adapter) {
  if (is_listed_[adapter.slot]) return;
  is_listed_[adapter.slot] = true;
  changes_.push_back(adapter.slot);
}

void ResidencyManager::TakeChanges(std::vector<std::uint32_t>& out) {
  out.insert(out.end(), changes_.begin(), changes_.end());
  for (const std::uint32_t slot : changes_) is_listed_[slot] = false;
  changes_.clear();
}

void ResidencyManager::UpdateIdle(AdapterResidency& adapter) {
  const bool idle = adapter.device == TierState::kResident && adapter.users == 0 && !adapter.kept;
  if (idle == (adapter.idle_position != kNotIdle)) return;
  idle_pages_ += idle ? adapter.pages : -adapter.pages;
  if (idle) {
    adapter.idle_position = static_cast<std::uint32_t>(idle_.size());
    idle_.push_back(adapter.version->generation);
    return;
  }
  idle_[adapter.idle_position] = idle_.back();  // the last one takes its place
  At(idle_.back()).idle_position = adapter.idle_position;
  idle_.pop_back();
  adapter.idle_position = kNotIdle;
}

void ResidencyManager::Evict(AdapterGeneration generation, Tier tier) {
  AdapterResidency& adapter = At(generation);
  CHECK(adapter.in(tier) == TierState::kResident);
  if (tier == Tier::kDevice) {
    CHECK_EQ(adapter.users, 0);
    adapter.uses_here = 0;
  }
  // Its copy in the host tier may be the source of a transfer.
  if (tier == Tier::kHost) CHECK(adapter.device != TierState::kLoading && !adapter.read_in_host);
  DropPages(adapter, tier);
  ++(tier == Tier::kHost ? stats_.host_evictions : stats_.device_evictions);
}

void ResidencyManager::ReadInHost(AdapterGeneration generation) {
  AdapterResidency& adapter = At(generation);
  CHECK(adapter.arriving());
  CHECK(adapter.host != TierState::kAbsent);
  if (adapter.read_in_host) return;
  adapter.read_in_host = true;
  read_in_host_.push_back(generation);
}

void ResidencyManager::EndHostReads() {
  for (const AdapterGeneration generation : read_in_host_) {
    AdapterResidency& adapter = At(generation);
    adapter.read_in_host = false;
    NoteChange(adapter);
  }
  read_in_host_.clear();
}

void ResidencyManager::Use(AdapterGeneration generation, TimeNs now) {
  AdapterResidency& adapter = At(generation);
  CHECK(adapter.device == TierState::kResident || adapter.arriving());
  if (adapter.users++ == 0) ++stats_.active;
  NoteChange(adapter);
  ++adapter.uses;
  ++adapter.uses_here;
  adapter.last_use = now;
  UpdateIdle(adapter);
}

void ResidencyManager::EndUse(AdapterGeneration generation, TimeNs now) {
  AdapterResidency& adapter = At(generation);
  CHECK_GT(adapter.users, 0);
  if (--adapter.users == 0) --stats_.active;
  NoteChange(adapter);
  adapter.last_use = now;
  UpdateIdle(adapter);
}

void ResidencyManager::CheckIntegrity() const {
  std::int64_t device_pages = 0, host_pages = 0, loading = 0;
  std::size_t device_residents = 0, host_residents = 0, known = 0, kept = 0, arriving = 0, idle = 0;
  std::int64_t idle_pages = 0;
  for (const AdapterResidency& adapter : adapters_) {
    if (adapter.version == nullptr) {
      CHECK(adapter.device_pages.empty() && adapter.host_pages.empty());
      CHECK_EQ(adapter.references + adapter.users, 0);
      continue;
    }
    CHECK(&Get(adapter.version->generation) == &adapter);
    CHECK(!adapter.unwanted() || adapter.device == TierState::kLoading || adapter.host == TierState::kLoading);
    CHECK_LE(adapter.users, adapter.references);
    ++known;
    kept += adapter.kept;
    const std::size_t pages = static_cast<std::size_t>(adapter.version->layout.pages);
    CHECK_EQ(adapter.device_pages.size(), adapter.device == TierState::kAbsent ? 0 : pages);
    CHECK_EQ(adapter.host_pages.size(), adapter.host == TierState::kAbsent ? 0 : pages);
    for (const PageHandle page : adapter.device_pages) CHECK(device_.IsCurrent(page));
    for (const PageHandle page : adapter.host_pages) CHECK(host_.IsCurrent(page));
    if (adapter.users > 0) CHECK(adapter.device == TierState::kResident || adapter.arriving() || adapter.failed);
    CHECK(!adapter.failed || adapter.device == TierState::kLoading);
    const bool loads = adapter.device == TierState::kLoading, read = adapter.host == TierState::kLoading;
    CHECK_EQ(adapter.progress != nullptr, (loads && !adapter.failed) || (read && !loads));
    arriving += adapter.arriving();
    CHECK_EQ(adapter.pages, adapter.version->layout.pages);
    const bool is_idle = adapter.device == TierState::kResident && adapter.users == 0 && !adapter.kept;
    if (is_idle) CHECK(idle_.at(adapter.idle_position) == adapter.version->generation);
    idle += is_idle;
    idle_pages += is_idle ? adapter.pages : 0;
    if (read && !loads) CHECK(adapter.device == TierState::kAbsent && adapter.version->generation == host_read_);
    device_pages += static_cast<std::int64_t>(adapter.device_pages.size());
    host_pages += static_cast<std::int64_t>(adapter.host_pages.size());
    loading += adapter.device == TierState::kLoading;
    device_residents += adapter.device == TierState::kResident;
    host_residents += adapter.host == TierState::kResident;
  }
  CHECK_EQ(device_pages, device_.Stats().used(PageCategory::kAdapter));
  CHECK_EQ(host_pages, host_.Stats().used(PageCategory::kAdapter));
  CHECK_EQ(loading, stats_.loading);
  CHECK_EQ(known + free_slots_.size(), adapters_.size());
  CHECK_EQ(kept, kept_.size());
  CHECK_EQ(arriving, arriving_.size());
  CHECK_EQ(device_residents, Residents(Tier::kDevice).size());
  CHECK_EQ(device_residents, static_cast<std::size_t>(stats_.device_resident));
  CHECK_EQ(host_residents, Residents(Tier::kHost).size());
  CHECK_EQ(host_residents, static_cast<std::size_t>(stats_.host_resident));
  CHECK_EQ(idle, idle_.size());
  CHECK_EQ(idle_pages, idle_pages_);
}

}  // namespace loramux
