#include "schedule/scheduler.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "schedule/merge_runs.h"

namespace loramux {
namespace {

constexpr std::uint8_t kEvicted = 1;       // off the device in this plan
constexpr std::uint8_t kWanted = 2;        // a request ahead in the queue needs it
constexpr std::uint8_t kHostEvicted = 4;   // off the host tier in this plan
constexpr std::uint8_t kLoadPlanned = 8;   // its load begins with this plan

// Two steps' worth: a few requests that come together need not wait for one another's share.
FairnessOptions WithBurst(const SchedulerOptions& options) {
  FairnessOptions fairness = options.fairness;
  if (fairness.burst == 0) fairness.burst = static_cast<double>(2 * options.max_batch_tokens);
  return fairness;
}

bool OlderThan(const Request* a, const Request* b) { return a->id < b->id; }

}  // namespace

Scheduler::Scheduler(SchedulerOptions options, PagePool* device, ResidencyManager* residency,
                     const EvictionPolicy* policy)
    : options_(options), device_(device), residency_(residency), policy_(policy), tenants_(WithBurst(options)) {
  CHECK_GT(options_.page_tokens, 0);
  CHECK_GT(options_.max_batch_tokens, 0);
  const auto most = static_cast<std::size_t>(2 * Seats());   // more may run than compute in a step
  running_.reserve(most);
  by_rank_.reserve(most);
  scratch_.runners.reserve(most);
  scratch_.merge_buffer.reserve(most);
  discardable_ = options_.discard_share > 0 ? static_cast<double>(options_.max_batch_tokens) : 0;
}

// ---------------------------------------------------------------- Planning

const StepPlan& Scheduler::Plan(TimeNs now) {
  MakePlan(now, /*may_pause=*/true);
  const auto paused = [](const Scratch::Runner& runner) { return runner.paused; };
  const auto& runners = scratch_.runners;
  // Nobody may pause for a request that then could not begin.
  if (plan_.chunks.empty() && std::any_of(runners.begin(), runners.end(), paused)) MakePlan(now, /*may_pause=*/false);
  return plan_;
}

void Scheduler::MakePlan(TimeNs now, bool may_pause) {
  plan_.Clear();
  ResetScratch();
  tenants_.Order(now, static_cast<std::size_t>(options_.lookahead), order_);
  RankRunning();
  MarkAdaptersOfWaitersAhead();
  PlanReclaim();
  PlanSeats(may_pause);
  PlanDecodes(now);
  PlanPrompts(now);
  PlanIdleSeats(now);
  SortByAdapter(plan_.chunks, chunk_buffer_);
}

void Scheduler::ResetScratch() {
  const std::size_t adapters = residency_->All().size();
  scratch_.free_device = device_->free_pages();
  scratch_.free_host = residency_->host() == nullptr ? 0 : residency_->host()->free_pages();
  scratch_.budget = options_.max_batch_tokens;
  scratch_.loads_in_flight = residency_->loads_in_flight();
  scratch_.pins.assign(pins_.begin(), pins_.end());
  scratch_.pins.resize(adapters, 0);
  scratch_.distinct_adapters = std::count_if(pins_.begin(), pins_.end(), [](std::int32_t pins) { return pins > 0; });
  scratch_.flags.assign(adapters, 0);
  scratch_.candidates_ready = false;
  scratch_.memory_short = false;
}

// A counter in whole quanta: a rank does not change with every token.
Scheduler::Rank Scheduler::RankOf(RequestId id, double service) const {
  return {static_cast<std::int64_t>(service / static_cast<double>(options_.max_batch_tokens)), id};
}

// Few ranks change from step to step, so the order of the last one is almost right.
void Scheduler::RankRunning() {
  auto& runners = scratch_.runners;
  runners.clear();
  scratch_.decode_pages = 0;
  for (Request* request : by_rank_) {
    Scratch::Runner& runner = runners.emplace_back();   // filled in place: a copy would wait for the stores
    runner.request = request;
    runner.service = tenants_.Service(*request);
    runner.rank = RankOf(request->id, runner.service);
    runner.uncomputed = static_cast<std::int32_t>(request->uncomputed());
    runner.next_pages = static_cast<std::int32_t>(MissingPages(*request, request->computed + 1));
    scratch_.decode_pages += runner.next_pages;
  }
  MergeRuns(runners, scratch_.merge_buffer,
            [](const Scratch::Runner& a, const Scratch::Runner& b) { return a.rank < b.rank; });
  for (std::size_t i = 0; i < runners.size(); ++i) by_rank_[i] = runners[i].request;
}

// A waiting request that ranks ahead of a running one was passed over while its adapter was loading, or was preempted.
// Lower ranks must not take that adapter's pages from it, or it would wait for ever.
void Scheduler::MarkAdaptersOfWaitersAhead() {
  scratch_.first_waiter = Rank{};
  if (running_.empty()) return;
  const Rank last = scratch_.runners.back().rank;
  for (const Turn& turn : order_.turns) {
    const Rank rank = RankOf(turn.request->id, tenants_.Service(*turn.request));
    scratch_.first_waiter = std::min(scratch_.first_waiter, rank);
    if (turn.request->adapter != kBaseModel && rank < last) Flags(turn.request->adapter) |= kWanted;
  }
}

bool Scheduler::IsLoading(const Request& request) const {
  return request.adapter != kBaseModel && residency_->Get(request.adapter).device == TierState::kLoading;
}

// Of its adapter, if that must be loaded first; else all pages of what is known, and of the token that follows, at once:
// a request that began its prefill can end it.
std::int64_t Scheduler::PagesToStart(const Request& request) const {
  if (request.adapter != kBaseModel) {
    const AdapterResidency& adapter = residency_->Get(request.adapter);
    if (adapter.device == TierState::kAbsent) return adapter.version->layout.pages;
  }
  return MissingPages(request, static_cast<std::int64_t>(request.tokens.size()) + 1);
}

// EvictablePages counts them, but no room is made for a request by the eviction of its own adapter.
std::int64_t Scheduler::PagesOfIdleAdapter(const Request& request) const {
  if (request.adapter == kBaseModel || scratch_.pins[request.adapter.value - 1] > 0) return 0;
  const AdapterResidency& adapter = residency_->Get(request.adapter);
  return adapter.device == TierState::kResident ? adapter.version->layout.pages : 0;
}

bool Scheduler::ExceedsDistinctAdapters(const Request& request) const {
  return request.adapter != kBaseModel && options_.max_distinct_adapters > 0 &&
         scratch_.pins[request.adapter.value - 1] == 0 && scratch_.distinct_adapters >= options_.max_distinct_adapters;
}

// Where the next in the order of service does not fit, lower ranks make room for it: all that it needs, or nothing.
void Scheduler::PlanReclaim() {
  if (discardable_ <= 0) return;
  const auto next = std::find_if(order_.turns.begin(), order_.turns.end(),
                                 [this](const Turn& turn) { return !IsLoading(*turn.request); });
  if (next == order_.turns.end()) return;
  std::int64_t missing = PagesToStart(*next->request) + GrowthReserve() - scratch_.free_device;
  if (missing + static_cast<std::int64_t>(running_.size()) <= 0) return;
  missing += scratch_.decode_pages + PagesOfIdleAdapter(*next->request) - EvictablePages(/*even_wanted=*/false);
  const std::int64_t level = RankOf(next->request->id, tenants_.Service(*next->request)).level;
  std::int64_t victims = 0;
  for (auto it = scratch_.runners.rbegin(); missing > 0 && it != scratch_.runners.rend() && it->rank.level > level; ++it) {
    missing -= static_cast<std::int64_t>(it->request->pages.size());
    ++victims;
  }
  if (missing > 0) return;
  for (; victims > 0; --victims) {
    plan_.discarded_tokens += scratch_.runners.back().request->computed;
    PlanPreemption();
  }
}

// Who computes in this step: as many as there are seats. The tenants that got the most service pause, if others need
// their seats that got less; of one tenant the youngest.
void Scheduler::PlanSeats(bool for_waiters) {
  auto& runners = scratch_.runners;
  scratch_.free_seats = Seats() - static_cast<std::int64_t>(runners.size());
  scratch_.pausable.Clear();
  scratch_.lower_levels = runners.size();
  while (scratch_.free_seats < 0) CHECK(PauseWorst(-std::numeric_limits<double>::infinity()));
  const bool enough = static_cast<std::int64_t>(order_.turns.size()) <= scratch_.free_seats;
  if (!for_waiters || enough || tenants_.active_tenants() <= 1) return;
  std::int64_t seats = scratch_.free_seats;
  std::int64_t more = Seats() + Seats() / 8 + 4 - static_cast<std::int64_t>(runners.size());   // who pauses keeps memory
  std::int64_t pages = scratch_.free_device - GrowthReserve() - scratch_.decode_pages;
  for (const Turn& turn : order_.turns) {
    if (IsLoading(*turn.request)) continue;
    if (ExceedsDistinctAdapters(*turn.request)) return;
    pages -= PagesToStart(*turn.request) + PagesOfIdleAdapter(*turn.request);
    if (pages < 0 && pages + EvictablePages(/*even_wanted=*/false) < 0) return;
    if (--more < 0) return;
    if (seats > 0) {
      --seats;
      continue;
    }
    if (!PauseWorst(turn.service)) return;
  }
}

// Pauses the youngest running request of the tenant that got the most service, if that is more than `service`.
bool Scheduler::PauseWorst(double service) {
  auto& heap = scratch_.pausable;
  if (heap.empty()) NextPausable();
  if (heap.empty() || !(heap.first().service > service)) return false;
  scratch_.runners[heap.first().runner].paused = true;
  heap.PopFirst();
  ++scratch_.free_seats;
  return true;
}

// Of the runners, those of the highest level that is left: all others got less service.
void Scheduler::NextPausable() {
  const auto& runners = scratch_.runners;
  std::size_t& at = scratch_.lower_levels;
  if (at == 0) return;
  const std::int64_t level = runners[at - 1].rank.level;
  for (; at > 0 && runners[at - 1].rank.level == level; --at) {
    scratch_.pausable.Append(runners[at - 1].service, runners[at - 1].rank.id, at - 1);
  }
  scratch_.pausable.MakeHeap();
}

// Seats that nobody took go back to those who paused for them.
void Scheduler::PlanIdleSeats(TimeNs now) {
  if (scratch_.memory_short) return;
  for (Scratch::Runner& runner : scratch_.runners) {
    if (scratch_.free_seats == 0 || scratch_.budget == 0) return;
    if (!runner.paused) continue;
    const std::int64_t tokens = ChunkTokens(runner.uncomputed);
    const std::int64_t pages = MissingPages(*runner.request, runner.request->computed + tokens);
    if (!MakeRoom(pages, now)) continue;
    scratch_.free_device -= pages;
    --scratch_.free_seats;
    runner.paused = false;
    AddChunk(runner.request, tokens, pages, false);
  }
}

// One token for each request whose prompt is done, highest rank first. A request may be preempted before its turn.
void Scheduler::PlanDecodes(TimeNs now) {
  const auto& runners = scratch_.runners;
  for (std::size_t i = 0; i < runners.size() && scratch_.budget > 0; ++i) {
    const Scratch::Runner& runner = runners[i];
    if (runner.paused || runner.uncomputed != 1) continue;
    if (runner.next_pages > 0 && !FreePagesFor(i, runner.next_pages, now)) continue;
    if (i >= runners.size()) return;   // it had to preempt itself
    AddChunk(runner.request, 1, runner.next_pages, false);
  }
}

// The next piece of each running prompt (or of a preempted sequence that is computed again), whose pages were allocated
// when the request was admitted, and the first of those who wait: in order of their tenants' counters.
void Scheduler::PlanPrompts(TimeNs now) {
  auto& prefills = scratch_.prefills;
  prefills.clear();
  for (const Scratch::Runner& runner : scratch_.runners) {
    if (!runner.paused && runner.uncomputed > 1) prefills.push_back(runner);
  }
  std::sort(prefills.begin(), prefills.end(), [](const Scratch::Runner& a, const Scratch::Runner& b) {
    return a.service != b.service ? a.service < b.service : a.rank.id < b.rank.id;
  });
  auto turn = order_.turns.begin();
  const auto end = scratch_.memory_short ? turn : order_.turns.end();
  bool open = true;
  const auto admit_next = [&] { open = TryAdmit((turn++)->request, now) != Admission::kBlocked; };
  for (const Scratch::Runner& prefill : prefills) {
    while (open && turn != end && turn->service < prefill.service) admit_next();
    if (scratch_.budget == 0) continue;
    const std::int64_t tokens = ChunkTokens(prefill.uncomputed);
    AddChunk(prefill.request, tokens, MissingPages(*prefill.request, prefill.request->computed + tokens), false);
  }
  while (open && turn != end) admit_next();
}

// Without a seat in this step, only the load of its adapter begins.
Scheduler::Admission Scheduler::TryAdmit(Request* request, TimeNs now) {
  const bool uses_adapter = request->adapter != kBaseModel;
  if (uses_adapter) {
    Flags(request->adapter) |= kWanted;
    const TierState state = residency_->Get(request->adapter).device;
    if (state == TierState::kLoading || (Flags(request->adapter) & kLoadPlanned) != 0) return Admission::kPassedOver;
    if (state == TierState::kAbsent || (Flags(request->adapter) & kEvicted) != 0) return TryLoad(request->adapter, now);
  }
  if (scratch_.free_seats == 0 || scratch_.budget == 0) return Admission::kPassedOver;
  if (ExceedsDistinctAdapters(*request)) return Admission::kBlocked;   // nobody behind may take the next place from it
  const std::int64_t pages = PagesToStart(*request);
  if (uses_adapter) ++scratch_.pins[request->adapter.value - 1];   // not a victim of its own admission
  if (!MakeRoom(pages + GrowthReserve(), now)) {
    if (uses_adapter) --scratch_.pins[request->adapter.value - 1];
    return Admission::kBlocked;
  }
  if (uses_adapter && scratch_.pins[request->adapter.value - 1] == 1) ++scratch_.distinct_adapters;
  scratch_.free_device -= pages;
  --scratch_.free_seats;
  AddChunk(request, ChunkTokens(request->uncomputed()), pages, true);
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

// Finds `pages` free pages for runners[index]: evicts idle adapters, preempts lower ranks, at last itself. An adapter that
// a waiting request of higher rank wants goes only after those that rank behind that request.
// False: not now (loads in flight hold what is missing), or it was preempted itself.
bool Scheduler::FreePagesFor(std::size_t index, std::int64_t pages, TimeNs now) {
  const auto& runners = scratch_.runners;
  while (scratch_.free_device < pages) {
    if (EvictOneAdapter(now, /*even_wanted=*/false)) continue;
    const std::size_t last = runners.size() - 1;
    if (last > index && scratch_.first_waiter < runners[last].rank) {
      scratch_.memory_short = true;
      PlanPreemption();
      continue;
    }
    scratch_.candidates_ready = false;   // wanted adapters were dropped from the heap
    if (EvictOneAdapter(now, /*even_wanted=*/true)) continue;
    if (last == 0) return false;   // alone: what is missing is held by loads in flight
    scratch_.memory_short = true;
    PlanPreemption();
    if (last == index) return true;   // the caller sees that it is among the preempted
  }
  scratch_.free_device -= pages;
  return true;
}

// Of the lowest in rank.
void Scheduler::PlanPreemption() {
  Request* request = scratch_.runners.back().request;
  scratch_.decode_pages -= scratch_.runners.back().next_pages;
  scratch_.runners.pop_back();
  plan_.preemptions.push_back(request);
  scratch_.free_device += static_cast<std::int64_t>(request->pages.size());
  if (request->adapter != kBaseModel) {
    if (--scratch_.pins[request->adapter.value - 1] == 0) --scratch_.distinct_adapters;
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

std::int64_t Scheduler::EvictablePages(bool even_wanted) const {
  std::int64_t pages = 0;
  for (const AdapterGeneration generation : residency_->DeviceResidents()) {
    const std::uint8_t flags = Flags(generation);
    if (scratch_.pins[generation.value - 1] > 0 || (flags & kEvicted) != 0) continue;
    if (!even_wanted && (flags & kWanted) != 0) continue;
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
      if (scratch_.pins[generation.value - 1] > 0 || (Flags(generation) & kEvicted) != 0) continue;
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
    if (scratch_.pins[victim.value - 1] > 0 || (!even_wanted && (Flags(victim) & kWanted) != 0)) {
      continue;
    }
    Flags(victim) |= kEvicted;
    plan_.device_evictions.push_back(victim);
    scratch_.free_device += residency_->Get(victim).version->layout.pages;
    return true;
  }
  return false;
}

// No division where nothing is missing, as for most tokens.
std::int64_t Scheduler::MissingPages(const Request& request, std::int64_t positions) const {
  const std::int64_t missing = positions - static_cast<std::int64_t>(request.pages.size()) * options_.page_tokens;
  return missing <= 0 ? 0 : (missing + options_.page_tokens - 1) / options_.page_tokens;
}

std::int64_t Scheduler::ChunkTokens(std::int64_t uncomputed) const {
  return std::min({uncomputed, options_.prefill_chunk, scratch_.budget});
}

void Scheduler::AddChunk(Request* request, std::int64_t tokens, std::int64_t new_pages, bool admits) {
  PlannedChunk& chunk = plan_.chunks.emplace_back();
  chunk.request = request;
  chunk.num_tokens = static_cast<std::int32_t>(tokens);
  chunk.new_pages = static_cast<std::int32_t>(new_pages);
  chunk.admits = admits;
  chunk.samples = tokens == request->uncomputed();
  plan_.num_tokens += tokens;
  if (tokens > 1 || !chunk.samples) plan_.prefill_tokens += tokens;
  scratch_.budget -= tokens;
}

// ---------------------------------------------------------------- Commit

void Scheduler::Commit(TimeNs now) {
  discardable_ -= static_cast<double>(plan_.discarded_tokens);
  for (Request* request : plan_.preemptions) Preempt(request, now);
  for (const AdapterGeneration generation : plan_.device_evictions) residency_->EvictFromDevice(generation);
  for (const AdapterGeneration generation : plan_.host_evictions) residency_->EvictFromHost(generation);
  for (const PlannedChunk& chunk : plan_.chunks) {
    Request* request = chunk.request;
    if (chunk.admits) {
      EraseWaiting(request);
      InsertRunning(request);
      tenants_.Admit(request, now);
      request->state = RequestState::kRunning;
      if (request->first_scheduled < 0) request->first_scheduled = now;
      if (request->adapter != kBaseModel) Pin(request->adapter, now);
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
  tenants_.Charge(request);
  const auto most = static_cast<double>(8 * options_.max_batch_tokens);
  discardable_ = std::min(most, discardable_ + options_.discard_share * static_cast<double>(num_tokens));
}

void Scheduler::Add(Request* request) {
  CHECK(waiting().empty() || OlderThan(waiting().back(), request));
  CHECK(running_.empty() || OlderThan(running_.back(), request));
  request->state = RequestState::kWaiting;
  waiting_.push_back(request);
  tenants_.Add(request, request->arrival);
}

void Scheduler::Remove(Request* request, TimeNs now) {
  tenants_.Remove(request);
  if (request->state == RequestState::kRunning) {
    EraseRunning(request);
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
  if (request->adapter == kBaseModel) return;
  residency_->Unpin(request->adapter, now);
  --pins_[request->adapter.value - 1];
}

void Scheduler::Pin(AdapterGeneration generation, TimeNs now) {
  residency_->Pin(generation, now);
  if (pins_.size() < generation.value) pins_.resize(generation.value, 0);
  ++pins_[generation.value - 1];
}

void Scheduler::Preempt(Request* request, TimeNs now) {
  EraseRunning(request);
  ReleaseMemory(request, now);
  request->state = RequestState::kWaiting;
  tenants_.Return(request, now);
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
  by_rank_.push_back(request);
}

void Scheduler::EraseRunning(Request* request) {
  const auto found = std::lower_bound(running_.begin(), running_.end(), request, OlderThan);
  CHECK(found != running_.end() && *found == request);
  running_.erase(found);
  by_rank_.erase(std::find(by_rank_.begin(), by_rank_.end(), request));
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
  tenants_.CheckIntegrity();
  CHECK(std::is_sorted(running_.begin(), running_.end(), OlderThan));
  CHECK(std::is_sorted(waiting().begin(), waiting().end(), OlderThan));
  std::int64_t kv_pages = 0;
  CHECK(std::is_permutation(running_.begin(), running_.end(), by_rank_.begin(), by_rank_.end()));
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
    if (request->adapter != kBaseModel) ++pins[request->adapter.value - 1];
  }
  for (const Request* request : waiting()) {
    CHECK(request->state == RequestState::kWaiting);
    CHECK(request->pages.empty());
    CHECK_EQ(request->computed, 0);
  }
  CHECK_EQ(kv_pages, device_->Stats().used(PageCategory::kKv));
  CHECK_LE(pins_.size(), pins.size());
  for (std::size_t i = 0; i < pins.size(); ++i) {
    CHECK_EQ(pins[i], residency_->All()[i].pins);
    CHECK_EQ(pins[i], i < pins_.size() ? pins_[i] : 0);
  }
}

}  // namespace loramux
