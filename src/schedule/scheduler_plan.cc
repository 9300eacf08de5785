// The plan of a step: which requests compute, in which order, and which are admitted.
#include <algorithm>
#include <limits>

#include "base/check.h"
#include "schedule/merge_runs.h"
#include "schedule/scheduler.h"

namespace loramux {

const StepPlan& Scheduler::Plan(TimeNs now) {
  if (Stalled()) {
    plan_.Clear();
    return plan_;
  }
  MakePlan(now, /*may_pause=*/true);
  const auto paused = [](const Scratch::Runner& runner) { return runner.paused; };
  const auto& runners = scratch_.runners;
  // If the waiting requests for which others pause cannot start, the step would compute nothing. Then plan again
  // without pauses.
  const bool idle = plan_.chunks.empty() && plan_.stalls.empty();
  if (idle && std::any_of(runners.begin(), runners.end(), paused)) MakePlan(now, /*may_pause=*/false);
  if (options_.cold_start != ColdStart::kPassOver) LoadBeforeStep();
  return plan_;
}

void Scheduler::MakePlan(TimeNs now, bool may_pause) {
  plan_.Clear();
  if (LoadsHoldStep()) return;
  ResetScratch(now);
  OrderWaiting(now);
  LookAtArrivals(now);
  RankRunning(now);
  MarkAdaptersOfWaitersAhead();
  if (!options_.keep_idle_adapters) PlanIdleEvictions(now);
  PlanSquashes(now);
  PlanReclaim(now);
  PlanSeats(may_pause);
  PlanDecodes(now);
  GiveTurnToDecodes();
  PlanLockedLoads(now);
  if (options_.spread_prompts && options_.whole_prompt_tokens == 0) SpreadPrompts();
  PlanPrompts(now);
  PlanIdleSeats(now);
  PlanFetchesAhead(now);
  SeparatePhases();
  HoldForLoads();
  if (options_.prefetch_lookahead > 0) PlanPrefetches(now);
  newest_seen_ = newest_;
  loads_wait_ = scratch_.loads_wait;
  somebody_waits_for_room_ = scratch_.memory_short || scratch_.locked_waits || scratch_.blocked != nullptr;
  SortByAdapter(plan_.chunks, chunk_buffer_);
}

void Scheduler::ResetScratch(TimeNs now) {
  const std::size_t adapters = residency_->All().size();
  scratch_.free_device = device_->free_pages();
  if (Partitioned()) {
    const PoolStats pool = device_->Stats();
    scratch_.free_adapters = adapter_pages_ - pool.used(PageCategory::kAdapter);
    scratch_.free_device = pool.capacity_pages - adapter_pages_ - pool.used(PageCategory::kKv);
  }
  scratch_.free_host = residency_->host() == nullptr ? 0 : residency_->host()->free_pages();
  scratch_.budget = options_.max_batch_tokens;
  scratch_.loads_in_flight = residency_->loads_in_flight();
  scratch_.fetches_in_flight = tiers_ == nullptr ? 0 : tiers_->fetches_in_flight();
  scratch_.droppable_host = tiers_ == nullptr ? 0 : tree_->droppable_host_pages();
  scratch_.slot_pins.assign(pins_.begin(), pins_.end());
  scratch_.slot_pins.resize(adapters, 0);
  scratch_.distinct_adapters = pinned_adapters_;
  scratch_.flags.assign(adapters, 0);
  ++scratch_.plan;
  scratch_.evictable_adapters = residency_->idle_pages();
  if (tree_ != nullptr) {
    for (const std::uint32_t branch : tree_->BranchesWithMoves()) {
      if (branch >= slots_of_branch_.size()) continue;  // the base model's branch
      for (const std::uint32_t slot : slots_of_branch_[branch]) {
        const AdapterResidency& adapter = residency_->All()[slot];
        if (adapter.idle()) scratch_.evictable_adapters -= adapter.pages;
      }
    }
  }
  scratch_.unwanted_adapters = scratch_.evictable_adapters;
  scratch_.candidates_ready = false;
  kv_plan_.Reset(now);
  scratch_.lane_use = lane_use_;
  scratch_.memory_short = false;
  scratch_.locked_waits = false;
  scratch_.loads_wait = false;
  scratch_.loads_pause = false;
  scratch_.awaits_load = false;
  scratch_.blocked = nullptr;
}

// Evaluated once per plan, so that the whole plan uses the same result. Few adapters are arriving at a time. If the
// device has another adapter of the same content, the history depends on that one until this one has arrived; until
// then no request begins with this one.
void Scheduler::LookAtArrivals(TimeNs now) {
  scratch_.usable_fetches = false;
  const bool alone = running_.empty() && order_.turns.size() <= 1;
  for (const AdapterGeneration generation : residency_->Arriving()) {
    const AdapterResidency& adapter = residency_->Get(generation);
    if (HasBranch(adapter.slot) && tree_->IsShared(*branch_of_slot_[adapter.slot])) continue;
    const TimeNs elapsed = now - adapter.transfer_started;
    const bool at_once = options_.cold_start == ColdStart::kBeginAtOnce;
    if (at_once || LeadSuffices(*adapter.progress, elapsed, step_floor_.value(), alone)) Flags(generation) |= kUsable;
  }
  if (tiers_ == nullptr) return;
  for (KvTiers::Fetching& fetch : tiers_->fetches()) {
    fetch.usable = !fetch.failed && LeadSuffices(*fetch.progress, now - fetch.begun, step_floor_.value(), alone);
    scratch_.usable_fetches |= fetch.usable;
  }
}

// The rank uses whole quanta of service, so that it does not change with every token.
Scheduler::Rank Scheduler::RankOf(RequestId id, double service) const {
  return {static_cast<std::int64_t>(service / static_cast<double>(options_.max_batch_tokens)), id};
}

// Few ranks change from step to step, so the order of the last step is nearly sorted.
void Scheduler::RankRunning(TimeNs now) {
  auto& runners = scratch_.runners;
  runners.clear();
  scratch_.decode_pages = 0;
  for (Request* request : by_rank_) {
    Scratch::Runner& runner = runners.emplace_back();  // filled in place: a copy would wait for the stores
    runner.request = request;
    runner.service = tenants_.Service(*request);
    runner.rank = RankOf(request->id, runner.service);
    runner.uncomputed = static_cast<std::int32_t>(request->uncomputed());
    runner.next_pages = static_cast<std::int32_t>(MissingPages(*request, request->computed + 1));
    scratch_.decode_pages += runner.next_pages;
  }
  if (Scratch::Runner* const overdue = OverdueRunner(now)) {
    overdue->service = -std::numeric_limits<double>::infinity();
    overdue->rank.level = std::numeric_limits<std::int64_t>::min();
  }
  MergeRuns(runners, scratch_.merge_buffer,
            [](const Scratch::Runner& a, const Scratch::Runner& b) { return a.rank < b.rank; });
  for (std::size_t i = 0; i < runners.size(); ++i) by_rank_[i] = runners[i].request;
}

// The oldest request of the tenant that has made no progress for longest, because its requests pause: it is treated as
// the turn of a tenant that waits. With a single seat only the tenant that has waited longest of all has its turn.
Scheduler::Scratch::Runner* Scheduler::OverdueRunner(TimeNs now) {
  if (tenants_.active_tenants() <= 1) return nullptr;
  Scratch::Runner* overdue = nullptr;
  TimeNs longest = now - options_.fairness.max_wait;
  if (Seats() == 1) longest = std::min(longest, tenants_.LongestWaitSince());
  for (Scratch::Runner& runner : scratch_.runners) {
    const TimeNs progressed = tenants_.ProgressedAt(*runner.request);
    const bool older = overdue != nullptr && progressed == longest && runner.rank.id < overdue->rank.id;
    if (progressed >= longest && !older) continue;
    overdue = &runner;
    longest = progressed;
  }
  return overdue;
}

// A waiting request that outranks a running one was passed over while its adapter was loading, or was preempted.
// Requests of lower rank must not take the pages of its adapter, or it could starve.
void Scheduler::MarkAdaptersOfWaitersAhead() {
  scratch_.first_waiter = scratch_.first_overdue = Rank{};
  if (running_.empty()) return;
  const Rank last = scratch_.runners.back().rank;
  const auto mark = [&](const Request& waiter) {
    const Rank rank = RankOf(waiter.id, tenants_.Service(waiter));
    scratch_.first_waiter = std::min(scratch_.first_waiter, rank);
    if (waiter.adapter != kBaseModel && rank < last) WantInPlan(waiter.adapter);
  };
  for (const Turn& turn : order_.turns) mark(*turn.request);
  for (const Request* overdue : overdue_) {
    mark(*overdue);  // may lie beyond lookahead
    if (overdue->adapter == kBaseModel || residency_->Get(overdue->adapter).device != TierState::kResident) continue;
    scratch_.first_overdue = std::min(scratch_.first_overdue, RankOf(overdue->id, tenants_.Service(*overdue)));
  }
}

// ---------------------------------------------------------------- Seats

// Chooses the requests that compute in this step, at most one per seat. If there are too few seats, the tenants with
// the most service pause in favour of tenants with less; within a tenant, the youngest request pauses.
void Scheduler::PlanSeats(bool for_waiters) {
  auto& runners = scratch_.runners;
  scratch_.free_seats = Seats() - static_cast<std::int64_t>(runners.size());
  scratch_.pausable.Clear();
  scratch_.lower_levels = runners.size();
  PauseBeyondSeats();
  const bool enough = static_cast<std::int64_t>(order_.turns.size()) <= scratch_.free_seats;
  if (!for_waiters || enough || tenants_.active_tenants() <= 1) return;
  std::int64_t seats = scratch_.free_seats;
  // The bound on running requests, because paused requests keep their memory.
  std::int64_t more = Seats() + Seats() / 8 + 4 - static_cast<std::int64_t>(runners.size());
  std::int64_t pages = scratch_.free_device - GrowthReserve() - scratch_.decode_pages;
  std::optional<std::int64_t> evictable;  // not changed in this function
  for (const Turn& turn : order_.turns) {
    if (IsLoading(*turn.request) || IsFetching(*turn.request) || (Partitioned() && MustLoad(*turn.request))) continue;
    if (ExceedsDistinctAdapters(*turn.request)) return;
    pages -= PagesToStart(*turn.request) + PagesOfIdleAdapter(*turn.request);
    if (pages < 0 && !evictable.has_value()) evictable = EvictablePages(PageCategory::kKv, /*even_wanted=*/false);
    if (pages < 0 && pages + *evictable < 0) return;
    if (--more < 0) return;
    if (seats > 0) {
      --seats;
      continue;
    }
    if (!PauseWorst(turn.service)) return;
  }
}

// Pauses whole levels first; that needs no order within the level.
void Scheduler::PauseBeyondSeats() {
  auto& runners = scratch_.runners;
  std::size_t& end = scratch_.lower_levels;
  while (scratch_.free_seats < 0) {
    std::size_t begin = end;
    while (begin > 0 && runners[begin - 1].rank.level == runners[end - 1].rank.level) --begin;
    if (static_cast<std::int64_t>(end - begin) > -scratch_.free_seats) break;
    scratch_.free_seats += static_cast<std::int64_t>(end - begin);
    for (; end > begin; --end) runners[end - 1].paused = true;
  }
  while (scratch_.free_seats < 0) CHECK(PauseWorst(-std::numeric_limits<double>::infinity()));
}

// Pauses the youngest running request of the tenant with the most service, if that tenant got more than `service`.
bool Scheduler::PauseWorst(double service) {
  auto& heap = scratch_.pausable;
  if (heap.empty()) NextPausable();
  if (heap.empty() || !(heap.first().service > service)) return false;
  scratch_.runners[heap.first().runner].paused = true;
  heap.PopFirst();
  ++scratch_.free_seats;
  return true;
}

// Takes the highest level that is left; all other levels got less service.
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

// Gives unused seats back to paused requests.
void Scheduler::PlanIdleSeats(TimeNs now) {
  if (scratch_.memory_short) return;
  for (Scratch::Runner& runner : scratch_.runners) {
    if (scratch_.free_seats == 0 || scratch_.budget == 0) return;
    if (!runner.paused) continue;
    const std::int64_t tokens = ChunkTokens(runner.uncomputed);
    const std::int64_t pages = MissingPages(*runner.request, runner.request->computed + tokens);
    if (!MakeRoom(PageCategory::kKv, pages, now)) continue;
    scratch_.free_device -= pages;
    --scratch_.free_seats;
    runner.paused = false;
    AddChunk(runner.request, tokens, pages);
  }
}

// ---------------------------------------------------------------- Chunks

// One token for each request with a computed prompt, highest rank first. A request may be preempted before its
// turn.
void Scheduler::PlanDecodes(TimeNs now) {
  const auto& runners = scratch_.runners;
  for (std::size_t i = 0; i < runners.size() && scratch_.budget > 0; ++i) {
    const Scratch::Runner& runner = runners[i];
    if (runner.paused || runner.uncomputed != 1) continue;
    if (runner.next_pages > 0 && !FreePagesFor(i, runner.next_pages, now)) continue;
    if (i >= runners.size()) return;  // runners[i] was preempted itself
    AddChunk(runner.request, 1, runner.next_pages);
  }
}

// Up to ridge_tokens, a step takes constant time, because it is bound by reading all weights. If memory admits only
// as many requests as finish, steps that only decode stay below that, and only prompts can fill them. To compute all
// prompts in one step would make that step longer and the others no shorter. So the prompts are spread, but over at
// most about kSteps steps, so that the backlog does not grow.
void Scheduler::SpreadPrompts() {
  constexpr std::int64_t kSteps = 8;
  const std::int64_t unused = options_.ridge_tokens - plan_.num_tokens;
  if (unused <= 0 || unused >= scratch_.budget || plan_.num_tokens == 0) return;
  const std::optional<std::int64_t> tokens = PromptsBoundByMemory();
  if (tokens.has_value()) scratch_.budget = std::min(scratch_.budget, std::max(unused, *tokens / kSteps));
}

// The tokens of running prompts, and of waiting prompts that memory has room for. None if memory has room for all of
// them.
std::optional<std::int64_t> Scheduler::PromptsBoundByMemory() const {
  std::int64_t tokens = 0;
  for (const Scratch::Runner& runner : scratch_.runners) {
    if (!runner.paused && runner.uncomputed > 1) tokens += runner.uncomputed;
  }
  if (scratch_.memory_short) return tokens;
  std::int64_t pages =
      scratch_.free_device + EvictablePages(PageCategory::kKv, /*even_wanted=*/false) - GrowthReserve();
  for (const Turn& turn : order_.turns) {
    const Request& request = *turn.request;
    if (IsLoading(request) || IsFetching(request)) continue;
    pages -= PagesToStart(request) + PagesOfIdleAdapter(request);
    if (pages < 0) return tokens;
    tokens += request.uncomputed();
  }
  return std::nullopt;
}

// Plans the next chunk of each running prompt (or of a preempted sequence that is computed again), and admits waiting
// requests. The pages of running prompts were allocated at their admission. Both go in the order of their tenants'
// counters.
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
  bool open = !scratch_.memory_short && !scratch_.locked_waits;
  const auto admit = [&](Request* request) {
    open = TryAdmit(request, now) != Admission::kBlocked;
    if (!open) scratch_.blocked = request;
  };
  for (Request* const overdue : overdue_) {
    if (!open) break;
    const std::size_t admissions = plan_.admissions.size();
    admit(overdue);
    const auto tokens = static_cast<double>(ExtentOf(*overdue).total());
    if (plan_.admissions.size() > admissions) scratch_.lane_use[static_cast<std::size_t>(overdue->lane)] += tokens;
  }
  const auto end = queue_->has_quotas() ? turn : order_.turns.end();
  const auto admit_next = [&] {
    Request* const request = (turn++)->request;
    if (!IsOverdue(*request)) admit(request);
  };
  for (const Scratch::Runner& prefill : prefills) {
    while (open && turn != end && turn->service < prefill.service) admit_next();
    if (scratch_.budget == 0) continue;
    const std::int64_t tokens = ChunkTokens(prefill.uncomputed);
    AddChunk(prefill.request, tokens, MissingPages(*prefill.request, prefill.request->computed + tokens));
  }
  while (open && turn != end) admit_next();
  if (open && queue_->has_quotas()) PlanLanes(now);
}

// If this step has no seat for the request, only the load of its adapter begins.
Scheduler::Admission Scheduler::TryAdmit(Request* request, TimeNs now) {
  const bool uses_adapter = request->adapter != kBaseModel;
  if (uses_adapter) {
    WantInPlan(request->adapter);
    const TierState state = residency_->Get(request->adapter).device;
    const std::uint8_t flags = Flags(request->adapter);
    const bool loading = (state == TierState::kLoading && (flags & kUsable) == 0) || (flags & kLoadPlanned) != 0;
    const bool absent = state == TierState::kAbsent || (flags & kEvicted) != 0;
    if ((loading || absent) && options_.cold_start == ColdStart::kStall) return PlanStall(request, now);
    if (absent && scratch_.loads_pause) return Admission::kPassedOver;
    const Admission outcome = absent && !loading ? TryLoad(request->adapter, now) : Admission::kPassedOver;
    if (loading || (Flags(request->adapter) & kLoadPlanned) != 0) AwaitLoad();
    if (loading || absent) return outcome;
  }
  if (scratch_.free_seats == 0 || scratch_.budget == 0) return Admission::kPassedOver;
  if (tiers_ != nullptr && TryFetch(request, now) == Admission::kPassedOver) return Admission::kPassedOver;
  if (ExceedsDistinctAdapters(*request)) return BeyondDistinct(*request);
  PlannedAdmission admission{request, PlannedTail(*request), {}};
  if (BreaksWholePrompts(request->uncomputed() - Depth(admission.tail) * options_.page_tokens))
    return Admission::kBlocked;
  const std::int64_t pages = PagesToStart(*request) - Depth(admission.tail);
  if (uses_adapter) PinInPlan(request->adapter);  // so that its own admission does not evict it
  if (!TakePages(admission, pages, now)) {
    if (uses_adapter) UnpinInPlan(request->adapter);
    return Admission::kBlocked;
  }
  if (uses_adapter && Pins(request->adapter) == 1) ++scratch_.distinct_adapters;
  --scratch_.free_seats;
  AddAdmission(admission, pages);
  return Admission::kAdmitted;
}

// Locks the pages that the request begins with and takes `pages` more. The page to copy from is kept until it is
// copied, but it is evicted if the admission would otherwise fail.
bool Scheduler::TakePages(PlannedAdmission& admission, std::int64_t pages, TimeNs now) {
  const std::int64_t wanted = pages + GrowthReserve();
  if (tree_ != nullptr) {
    admission.in_page = FindInPage(*admission.request, admission.tail);
    if (admission.in_page.tokens > 0) {
      kv_plan_.Lock(admission.in_page.node);
      if (MakeRoom(PageCategory::kKv, wanted, now)) {
        scratch_.free_device -= pages;
        return true;
      }
      kv_plan_.Unlock(admission.in_page.node, now);
      admission.in_page = {};
    }
    kv_plan_.Lock(admission.tail);
  }
  if (!MakeRoom(PageCategory::kKv, wanted, now)) {
    if (tree_ != nullptr) kv_plan_.Unlock(admission.tail, now);
    return false;
  }
  scratch_.free_device -= pages;
  return true;
}

// A page that this plan evicts is not copied. The last token is always computed, as in FindTail.
DependencyTree::InPage Scheduler::FindInPage(const Request& request, NodeId tail) const {
  const auto begin = static_cast<std::size_t>(Depth(tail) * options_.page_tokens);
  const std::span<const TokenId> next(request.tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                      request.tokens.end() - 1);
  const DependencyTree::InPage found = tree_->MatchInPage(tail, next);
  return found.tokens > 0 && kv_plan_.Kept(found.node) == found.node ? found : DependencyTree::InPage{};
}

// The request waits while its history is on the way from the host tier, or while too many fetches are under way. It
// goes ahead with what the device has if there is nothing to fetch or no room for it. Fetched pages may be evicted
// before the request gets its turn; then they are fetched again, at most Request::kMostFetches times.
Scheduler::Admission Scheduler::TryFetch(Request* request, TimeNs now) {
  if (tree_->host_pages() == 0) return Admission::kAdmitted;
  const NodeId tail = FindTail(*request);
  std::int64_t pages = 0;
  for (NodeId at = tail; !tree_->OnDevice(at); at = tree_->Parent(at)) {
    if (tree_->Moving(at) && pages == 0 && IsUsable(at)) return Admission::kAdmitted;
    if (tree_->Moving(at) || kv_plan_.IsFetched(at)) return Admission::kPassedOver;
    ++pages;
  }
  // History is fetched only once its adapter is on the device, because the load may still fail.
  const bool arriving =
      request->adapter != kBaseModel && residency_->Get(request->adapter).device != TierState::kResident;
  if (arriving && pages > 0) return Admission::kPassedOver;
  if (pages == 0 || request->fetches == Request::kMostFetches) return Admission::kAdmitted;
  if (scratch_.fetches_in_flight >= KvTiers::kMaxFetches) return Admission::kPassedOver;
  if (scratch_.droppable_host < pages) return Admission::kAdmitted;
  const NodeId device_tail = DeviceTail(tail);
  // This plan evicts part of the path that the fetched pages depend on. The next plan fetches that part too. To
  // recompute everything that the host tier has would cost all requests more than this one loses by waiting.
  if (kv_plan_.Kept(device_tail) != device_tail) return Admission::kPassedOver;
  kv_plan_.Lock(device_tail);
  if (!MakeRoom(PageCategory::kKv, pages + GrowthReserve(), now)) {
    kv_plan_.Unlock(device_tail, now);
    return Admission::kAdmitted;
  }
  AddFetch(request, tail, pages, /*ahead=*/false);
  return Admission::kPassedOver;
}

void Scheduler::AddFetch(Request* request, NodeId tail, std::int64_t pages, bool ahead) {
  kv_plan_.Fetch(tail);
  plan_.fetches.push_back({request, tail, ahead, pages});
  ++scratch_.fetches_in_flight;
  scratch_.free_device -= pages;
  scratch_.droppable_host -= pages;
}

NodeId Scheduler::DeviceTail(NodeId tail) const {
  while (!IsUsable(tail)) tail = tree_->Parent(tail);
  return tail;
}

// The last token is never reused, because its logits are needed. An earlier result usually still exists, so the
// search continues from it.
NodeId Scheduler::FindTail(Request& request) const {
  if (tree_ == nullptr) return {};
  const std::int64_t most = (static_cast<std::int64_t>(request.tokens.size()) - 1) / options_.page_tokens;
  NodeId from = request.top;
  if (tree_->Exists(request.found))
    from = request.found;
  else if (tree_->Exists(request.tail))
    from = request.tail;
  return request.found = tree_->Match(from, request.tokens, most);
}

// A fetch that covers the whole path and is usable already does not count.
bool Scheduler::IsFetching(const Request& request) const {
  if (tiers_ == nullptr || !tree_->Exists(request.found)) return false;
  NodeId at = request.found;
  for (; !tree_->OnDevice(at); at = tree_->Parent(at)) {
    if (tree_->Moving(at)) return at != request.found || !IsUsable(at);
  }
  return false;
}

bool Scheduler::IsLoading(const Request& request) const {
  return request.adapter != kBaseModel && residency_->Get(request.adapter).device == TierState::kLoading &&
         (Flags(request.adapter) & kUsable) == 0;
}

bool Scheduler::ExceedsDistinctAdapters(const Request& request) const {
  return request.adapter != kBaseModel && options_.max_distinct_adapters > 0 &&
         scratch_.slot_pins[residency_->SlotOf(request.adapter)] == 0 &&
         scratch_.distinct_adapters >= options_.max_distinct_adapters;
}

void Scheduler::AddAdmission(const PlannedAdmission& admission, std::int64_t new_pages) {
  Request* request = admission.request;
  plan_.admissions.push_back(admission);
  const std::int64_t uncomputed =
      request->uncomputed() - Depth(admission.tail) * options_.page_tokens - admission.in_page.tokens;
  const std::int64_t tokens = ChunkTokens(uncomputed);
  AddChunk(request, tokens, new_pages);
  plan_.chunks.back().admits = true;
  plan_.chunks.back().samples = tokens == uncomputed;
}

void Scheduler::AddChunk(Request* request, std::int64_t tokens, std::int64_t new_pages) {
  PlannedChunk& chunk = plan_.chunks.emplace_back();
  chunk.request = request;
  chunk.num_tokens = static_cast<std::int32_t>(tokens);
  chunk.new_pages = static_cast<std::int32_t>(new_pages);
  chunk.samples = tokens == request->uncomputed();
  plan_.num_tokens += tokens;
  if (tokens > 1 || !chunk.samples) plan_.prefill_tokens += tokens;
  scratch_.budget -= tokens;
}

}  // namespace loramux
