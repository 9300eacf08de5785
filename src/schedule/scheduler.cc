#include "schedule/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace loramux {
namespace {

constexpr std::uint8_t kEvicted = 1;       // off the device in this plan
constexpr std::uint8_t kWanted = 2;        // a request ahead in the queue needs it
constexpr std::uint8_t kHostEvicted = 4;   // off the host tier in this plan
constexpr std::uint8_t kLoadPlanned = 8;   // its load begins with this plan

bool OlderThan(const Request* a, const Request* b) { return a->id < b->id; }

}  // namespace

Scheduler::Scheduler(SchedulerOptions options, PagePool* device, ResidencyManager* residency,
                     const EvictionPolicy* policy)
    : options_(options), device_(device), residency_(residency), policy_(policy) {
  CHECK_GT(options_.page_tokens, 0);
  CHECK_GT(options_.max_batch_tokens, 0);
  running_.reserve(static_cast<std::size_t>(options_.max_running));
}

// ---------------------------------------------------------------- Planning

const StepPlan& Scheduler::Plan(TimeNs now) {
  plan_.Clear();
  planned_preemptions_ = 0;
  ResetScratch();
  MarkAdaptersOfOlderWaiters();
  PlanDecodes(now);
  PlanPrefills();
  if (PlanLockedLoads(now)) PlanAdmissions(now);
  SortChunksByAdapter();
  return plan_;
}

void Scheduler::ResetScratch() {
  const auto& adapters = residency_->All();
  scratch_.free_device = device_->free_pages();
  scratch_.free_host = residency_->host() == nullptr ? 0 : residency_->host()->free_pages();
  scratch_.budget = options_.max_batch_tokens;
  scratch_.loads_in_flight = residency_->loads_in_flight();
  scratch_.slot_pins.resize(adapters.size());
  scratch_.distinct_adapters = 0;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    scratch_.slot_pins[i] = adapters[i].pins;
    scratch_.distinct_adapters += adapters[i].pins > 0;
  }
  scratch_.flags.assign(adapters.size(), 0);
  scratch_.candidates_ready = false;
}

// A waiting request that is older than a running one was passed over while its adapter was loading, or was preempted.
// Younger requests must not take that adapter's pages from it, or it would wait for ever.
void Scheduler::MarkAdaptersOfOlderWaiters() {
  if (running_.empty()) return;
  const auto queue = waiting();
  const std::size_t end = std::min(queue.size(), static_cast<std::size_t>(options_.lookahead));
  for (std::size_t i = 0; i < end && OlderThan(queue[i], running_.back()); ++i) {
    if (queue[i]->adapter != kBaseModel) Flags(queue[i]->adapter) |= kWanted;
  }
}

// One token for each request whose prompt is done, oldest first. A request may be preempted before its turn.
void Scheduler::PlanDecodes(TimeNs now) {
  for (std::size_t i = 0; i + planned_preemptions_ < running_.size(); ++i) {
    Request* request = running_[i];
    if (request->uncomputed() != 1 || scratch_.budget == 0) continue;
    if (!FreePagesFor(i, MissingPages(*request, request->computed + 1), now)) continue;
    if (i + planned_preemptions_ >= running_.size()) break;   // it had to preempt itself
    AddChunk(request, 1, false);
  }
}

// The next piece of each prompt (or of a preempted sequence that is computed again). Its pages were allocated when the
// request was admitted.
void Scheduler::PlanPrefills() {
  for (std::size_t i = 0; i + planned_preemptions_ < running_.size() && scratch_.budget > 0; ++i) {
    Request* request = running_[i];
    if (request->uncomputed() <= 1) continue;
    AddChunk(request, std::min({request->uncomputed(), options_.prefill_chunk, scratch_.budget}), false);
  }
}

// False: one of them waits for room, so nobody may join and take it.
bool Scheduler::PlanLockedLoads(TimeNs now) {
  if (planned_preemptions_ > 0) return true;   // nobody joins anyway
  for (const AdapterGeneration generation : residency_->Locked()) {
    if (residency_->Get(generation).device != TierState::kAbsent) continue;
    if (TryLoad(generation, now) == Admission::kBlocked) return false;
  }
  return true;
}

void Scheduler::PlanAdmissions(TimeNs now) {
  if (planned_preemptions_ > 0) return;   // memory is short: nobody joins in the same step
  std::int64_t running = static_cast<std::int64_t>(running_.size());
  const auto queue = waiting();
  const std::size_t end = std::min(queue.size(), static_cast<std::size_t>(options_.lookahead));
  for (std::size_t i = 0; i < end; ++i) {
    const bool has_seat = running < options_.max_running && scratch_.budget > 0;
    const Admission admission = TryAdmit(queue[i], has_seat, now);
    if (admission == Admission::kBlocked) break;
    if (admission == Admission::kAdmitted) ++running;
  }
}

// Without a seat in this step, only the load of its adapter begins.
Scheduler::Admission Scheduler::TryAdmit(Request* request, bool has_seat, TimeNs now) {
  const bool uses_adapter = request->adapter != kBaseModel;
  if (uses_adapter) {
    Flags(request->adapter) |= kWanted;
    const TierState state = residency_->Get(request->adapter).device;
    if (state == TierState::kLoading || (Flags(request->adapter) & kLoadPlanned) != 0) return Admission::kPassedOver;
    if (state == TierState::kAbsent || (Flags(request->adapter) & kEvicted) != 0) return TryLoad(request->adapter, now);
  }
  if (!has_seat) return Admission::kPassedOver;
  if (uses_adapter && options_.max_distinct_adapters > 0 && Pins(request->adapter) == 0 &&
      scratch_.distinct_adapters >= options_.max_distinct_adapters) {
    return Admission::kBlocked;   // nobody behind may take the next place in the batch from it
  }
  // All pages of what is known, and of the token that follows, at once: a request that began its prefill can end it.
  const std::int64_t pages = MissingPages(*request, static_cast<std::int64_t>(request->tokens.size()) + 1);
  if (uses_adapter) ++Pins(request->adapter);   // not a victim of its own admission
  if (!MakeRoom(pages + GrowthReserve(), now)) {
    if (uses_adapter) --Pins(request->adapter);
    return Admission::kBlocked;
  }
  if (uses_adapter && Pins(request->adapter) == 1) ++scratch_.distinct_adapters;
  scratch_.free_device -= pages;
  AddChunk(request, std::min({request->uncomputed(), options_.prefill_chunk, scratch_.budget}), true);
  plan_.chunks.back().new_pages = static_cast<std::int32_t>(pages);
  return Admission::kAdmitted;
}

Scheduler::Admission Scheduler::TryLoad(AdapterGeneration generation, TimeNs now) {
  if ((Flags(generation) & kEvicted) != 0) return Admission::kBlocked;   // this very plan needs its pages
  if (scratch_.loads_in_flight >= options_.max_loads_in_flight) return Admission::kPassedOver;
  const AdapterResidency& adapter = residency_->Get(generation);
  if (!MakeRoom(adapter.version->layout.pages + GrowthReserve(), now)) return Admission::kBlocked;
  scratch_.free_device -= adapter.version->layout.pages;
  ++scratch_.loads_in_flight;
  Flags(generation) |= kLoadPlanned;
  plan_.loads.push_back({generation, PlanHostRoom(adapter)});
  return Admission::kPassedOver;
}

// True if the load can go through the host tier, after the least recently used copies there give way.
bool Scheduler::PlanHostRoom(const AdapterResidency& adapter) {
  const bool kept = (Flags(adapter.version->generation) & kHostEvicted) == 0;   // by an earlier load of this plan
  if (adapter.host == TierState::kResident && kept) return true;
  if (residency_->host() == nullptr || adapter.version->layout.pages > residency_->host()->capacity_pages()) return false;
  const std::size_t first_victim = plan_.host_evictions.size();
  while (scratch_.free_host < adapter.version->layout.pages) {
    const AdapterResidency* victim = nullptr;
    for (const AdapterGeneration generation : residency_->HostResidents()) {
      const AdapterResidency& candidate = residency_->Get(generation);
      const bool moving = candidate.device == TierState::kLoading || (Flags(generation) & (kLoadPlanned | kHostEvicted)) != 0;
      if (moving) continue;
      if (victim == nullptr || candidate.last_use < victim->last_use) victim = &candidate;
    }
    if (victim == nullptr) {   // everything left is on its way to the device: go past the host tier
      for (std::size_t i = first_victim; i < plan_.host_evictions.size(); ++i) {
        const AdapterGeneration kept = plan_.host_evictions[i];
        Flags(kept) &= static_cast<std::uint8_t>(~kHostEvicted);
        scratch_.free_host -= residency_->Get(kept).version->layout.pages;
      }
      plan_.host_evictions.resize(first_victim);
      return false;
    }
    Flags(victim->version->generation) |= kHostEvicted;
    plan_.host_evictions.push_back(victim->version->generation);
    scratch_.free_host += victim->version->layout.pages;
  }
  scratch_.free_host -= adapter.version->layout.pages;
  return true;
}

// Finds `pages` free pages for running_[index]: evicts idle adapters, preempts younger requests, at last itself. An
// adapter that an older waiting request wants goes only after those that are younger than that request.
// False: not now (loads in flight hold what is missing), or it was preempted itself.
bool Scheduler::FreePagesFor(std::size_t index, std::int64_t pages, TimeNs now) {
  while (scratch_.free_device < pages) {
    if (EvictOneAdapter(now, /*even_wanted=*/false)) continue;
    const std::size_t youngest = running_.size() - 1 - planned_preemptions_;
    if (youngest > index && !waiting().empty() && OlderThan(waiting().front(), running_[youngest])) {
      PlanPreemption(running_[youngest]);
      continue;
    }
    scratch_.candidates_ready = false;   // wanted adapters were dropped from the heap
    if (EvictOneAdapter(now, /*even_wanted=*/true)) continue;
    if (youngest == 0) return false;   // alone: what is missing is held by loads in flight
    PlanPreemption(running_[youngest]);
    if (youngest == index) return true;   // the caller sees that it is among the preempted
  }
  scratch_.free_device -= pages;
  return true;
}

void Scheduler::PlanPreemption(Request* request) {
  ++planned_preemptions_;
  plan_.preemptions.push_back(request);
  scratch_.free_device += static_cast<std::int64_t>(request->pages.size());
  if (request->adapter != kBaseModel) {
    if (--Pins(request->adapter) == 0) --scratch_.distinct_adapters;
    scratch_.candidates_ready = false;   // its adapter may be idle now
  }
}

// Pages that newcomers and loads leave free: one for each running request, so that the next decode step need not preempt
// right away. With nobody running it is 0, so what fits alone still fits.
std::int64_t Scheduler::GrowthReserve() const { return static_cast<std::int64_t>(running_.size()); }

// Evicts idle adapters until `pages` are free; all or nothing.
bool Scheduler::MakeRoom(std::int64_t pages, TimeNs now) {
  if (scratch_.free_device >= pages) return true;
  if (scratch_.free_device + EvictablePages(/*even_wanted=*/false) < pages) return false;
  while (scratch_.free_device < pages) CHECK(EvictOneAdapter(now, /*even_wanted=*/false));
  return true;
}

bool Scheduler::Evictable(AdapterGeneration generation) const {
  const AdapterResidency& adapter = residency_->Get(generation);
  return !adapter.locked && scratch_.slot_pins[adapter.slot] == 0 && (scratch_.flags[adapter.slot] & kEvicted) == 0;
}

std::int64_t Scheduler::EvictablePages(bool even_wanted) const {
  std::int64_t pages = 0;
  for (const AdapterGeneration generation : residency_->DeviceResidents()) {
    if (!Evictable(generation) || (!even_wanted && (Flags(generation) & kWanted) != 0)) continue;
    pages += residency_->Get(generation).version->layout.pages;
  }
  return pages;
}

bool Scheduler::EvictOneAdapter(TimeNs now, bool even_wanted) {
  const auto worse = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.adapter > b.adapter;
  };
  auto& heap = scratch_.candidates;
  if (!scratch_.candidates_ready) {
    heap.clear();
    for (const AdapterGeneration generation : residency_->DeviceResidents()) {
      if (!Evictable(generation)) continue;
      const AdapterResidency& adapter = residency_->Get(generation);
      const EvictionCandidate candidate{generation, adapter.version->layout.pages, adapter.last_use, adapter.uses,
                                        adapter.host == TierState::kResident};
      heap.push_back({policy_->Score(candidate, now), generation});
    }
    std::make_heap(heap.begin(), heap.end(), worse);
    scratch_.candidates_ready = true;
  }
  while (!heap.empty()) {
    const AdapterGeneration victim = heap.front().adapter;
    std::pop_heap(heap.begin(), heap.end(), worse);
    heap.pop_back();
    // Wanted or pinned since the heap was made: it comes back with the next heap.
    if (Pins(victim) > 0 || (!even_wanted && (Flags(victim) & kWanted) != 0)) {
      continue;
    }
    Flags(victim) |= kEvicted;
    plan_.device_evictions.push_back(victim);
    scratch_.free_device += residency_->Get(victim).version->layout.pages;
    return true;
  }
  return false;
}

std::int64_t Scheduler::MissingPages(const Request& request, std::int64_t positions) const {
  const std::int64_t needed = (positions + options_.page_tokens - 1) / options_.page_tokens;
  return std::max<std::int64_t>(0, needed - static_cast<std::int64_t>(request.pages.size()));
}

void Scheduler::AddChunk(Request* request, std::int64_t tokens, bool admits) {
  PlannedChunk chunk;
  chunk.request = request;
  chunk.num_tokens = static_cast<std::int32_t>(tokens);
  chunk.new_pages = static_cast<std::int32_t>(MissingPages(*request, request->computed + tokens));
  chunk.admits = admits;
  chunk.samples = tokens == request->uncomputed();
  plan_.chunks.push_back(chunk);
  plan_.num_tokens += tokens;
  if (tokens > 1 || !chunk.samples) plan_.prefill_tokens += tokens;
  scratch_.budget -= tokens;
}

// Requests of one adapter become one segment of the batched LoRA product; the base model's come first.
void Scheduler::SortChunksByAdapter() {
  sort_buffer_.clear();
  for (std::size_t i = 0; i < plan_.chunks.size(); ++i) {
    const std::uint64_t key = static_cast<std::uint64_t>(plan_.chunks[i].request->adapter.value) << 32 | i;
    sort_buffer_.emplace_back(key, plan_.chunks[i]);
  }
  std::sort(sort_buffer_.begin(), sort_buffer_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < sort_buffer_.size(); ++i) plan_.chunks[i] = sort_buffer_[i].second;
}

// ---------------------------------------------------------------- Commit

void Scheduler::Commit(TimeNs now) {
  for (Request* request : plan_.preemptions) Preempt(request, now);
  for (const AdapterGeneration generation : plan_.device_evictions) residency_->EvictFromDevice(generation);
  for (const AdapterGeneration generation : plan_.host_evictions) residency_->EvictFromHost(generation);
  for (const PlannedChunk& chunk : plan_.chunks) {
    Request* request = chunk.request;
    if (chunk.admits) {
      EraseWaiting(request);
      InsertRunning(request);
      request->state = RequestState::kRunning;
      if (request->first_scheduled < 0) request->first_scheduled = now;
      if (request->adapter != kBaseModel) residency_->Pin(request->adapter, now);
    }
    if (chunk.new_pages == 0) continue;
    const std::size_t old_size = request->pages.size();
    request->pages.resize(old_size + static_cast<std::size_t>(chunk.new_pages));
    const std::span<PageHandle> added = std::span(request->pages).subspan(old_size);
    CHECK(device_->Allocate(PageCategory::kKv, added));
    for (const PageHandle page : added) request->page_table.push_back(page.index);
  }
  for (const PlannedLoad& load : plan_.loads) residency_->BeginLoad(load.adapter, load.via_host, now);
}

void Scheduler::Advance(Request* request, std::int64_t num_tokens) {
  request->computed += num_tokens;
  CHECK_LE(request->computed, static_cast<std::int64_t>(request->tokens.size()));
}

void Scheduler::Add(Request* request) {
  CHECK(waiting().empty() || OlderThan(waiting().back(), request));
  CHECK(running_.empty() || OlderThan(running_.back(), request));
  request->state = RequestState::kWaiting;
  waiting_.push_back(request);
}

void Scheduler::Remove(Request* request, TimeNs now) {
  if (request->state == RequestState::kRunning) {
    const auto found = std::lower_bound(running_.begin(), running_.end(), request, OlderThan);
    CHECK(found != running_.end() && *found == request);
    running_.erase(found);
    ReleaseMemory(request, now);
  } else {
    CHECK(request->state == RequestState::kWaiting);
    EraseWaiting(request);
  }
  request->state = RequestState::kFinished;
}

void Scheduler::ReleaseMemory(Request* request, TimeNs now) {
  device_->Free(PageCategory::kKv, request->pages);
  request->pages.clear();
  request->page_table.clear();
  request->computed = 0;
  if (request->adapter != kBaseModel) residency_->Unpin(request->adapter, now);
}

void Scheduler::Preempt(Request* request, TimeNs now) {
  CHECK(running_.back() == request);
  running_.pop_back();
  ReleaseMemory(request, now);
  request->state = RequestState::kWaiting;
  ++request->preemptions;
  ++preemptions_;
  if (waiting_head_ > 0) {
    waiting_[--waiting_head_] = request;
  } else {
    waiting_.insert(waiting_.begin(), request);
  }
  // It is older than everyone who was never admitted, but maybe not than others that were preempted before.
  const auto begin = waiting_.begin() + static_cast<std::ptrdiff_t>(waiting_head_);
  for (auto it = begin; it + 1 != waiting_.end() && OlderThan(*(it + 1), *it); ++it) std::swap(*it, *(it + 1));
}

void Scheduler::InsertRunning(Request* request) {
  running_.insert(std::lower_bound(running_.begin(), running_.end(), request, OlderThan), request);
}

void Scheduler::EraseWaiting(Request* request) {
  const auto begin = waiting_.begin() + static_cast<std::ptrdiff_t>(waiting_head_);
  const auto found = std::lower_bound(begin, waiting_.end(), request, OlderThan);
  CHECK(found != waiting_.end() && *found == request);
  std::move_backward(begin, found, found + 1);   // usually it is the first, and nothing moves
  ++waiting_head_;
  if (waiting_head_ > 1024 && waiting_head_ * 2 > waiting_.size()) {
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(waiting_head_));
    waiting_head_ = 0;
  }
}

void Scheduler::CheckIntegrity() const {
  CHECK(std::is_sorted(running_.begin(), running_.end(), OlderThan));
  CHECK(std::is_sorted(waiting().begin(), waiting().end(), OlderThan));
  std::int64_t kv_pages = 0;
  std::vector<std::int32_t> pins(residency_->All().size(), 0);
  for (const Request* request : running_) {
    CHECK(request->state == RequestState::kRunning);
    CHECK_EQ(request->pages.size(), request->page_table.size());
    CHECK_LE(request->computed, static_cast<std::int64_t>(request->pages.size()) * options_.page_tokens);
    for (std::size_t i = 0; i < request->pages.size(); ++i) {
      CHECK(device_->IsCurrent(request->pages[i]));
      CHECK_EQ(request->pages[i].index, request->page_table[i]);
    }
    kv_pages += static_cast<std::int64_t>(request->pages.size());
    if (request->adapter != kBaseModel) ++pins[residency_->SlotOf(request->adapter)];
  }
  for (const Request* request : waiting()) {
    CHECK(request->state == RequestState::kWaiting);
    CHECK(request->pages.empty());
    CHECK_EQ(request->computed, 0);
  }
  CHECK_EQ(kv_pages, device_->Stats().used(PageCategory::kKv));
  for (std::size_t i = 0; i < pins.size(); ++i) CHECK_EQ(pins[i], residency_->All()[i].pins);
}

}  // namespace loramux
