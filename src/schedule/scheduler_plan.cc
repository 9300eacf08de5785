// The plan of a step: who computes, in which order, and who begins.
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
  // Nobody may pause for a request that then could not begin.
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
  RankRunning();
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
      if (branch >= slots_of_branch_.size()) continue;  // the base model's
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

// Once a plan, which then goes by that. `arriving` is few. Where another adapter has the same
// content, its history depends on that one until this one is there: nobody begins with it before.
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
    Scratch::Runner& runner = runners.emplace_back();  // filled in place: a copy would wait for the stores
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
    mark(*overdue);  // maybe behind all that are looked at
    if (overdue->adapter == kBaseModel || residency_->Get(overdue->adapter).device != TierState::kResident) continue;
    scratch_.first_overdue = std::min(scratch_.first_overdue, RankOf(overdue->id, tenants_.Service(*overdue)));
  }
}

// ---------------------------------------------------------------- Seats

// Who computes in this step: as many as there are seats. The tenants that got the most service pause, if others need
// their seats that got less; of one tenant the youngest.
void Scheduler::PlanSeats(bool for_waiters) {
  auto& runners = scratch_.runners;
  scratch_.free_seats = Seats() - static_cast<std::int64_t>(runners.size());
  scratch_.pausable.Clear();
  scratch_.lower_levels = runners.size();
  PauseBeyondSeats();
  const bool enough = static_cast<std::int64_t>(order_.turns.size()) <= scratch_.free_seats;
  if (!for_waiters || enough || tenants_.active_tenants() <= 1) return;
  std::int64_t seats = scratch_.free_seats;
  // who pauses keeps memory
  std::int64_t more = Seats() + Seats() / 8 + 4 - static_cast<std::int64_t>(runners.size());
  std::int64_t pages = scratch_.free_device - GrowthReserve() - scratch_.decode_pages;
  std::optional<std::int64_t> evictable;  // nothing here changes it
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

// Whole levels first, which need no order.
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
    if (!MakeRoom(PageCategory::kKv, pages, now)) continue;
    scratch_.free_device -= pages;
    --scratch_.free_seats;
    runner.paused = false;
    AddChunk(runner.request, tokens, pages);
  }
}

// ---------------------------------------------------------------- Chunks

// One token for each request whose prompt is done, highest rank first. A request may be preempted before its turn.
void Scheduler::PlanDecodes(TimeNs now) {
  const auto& runners = scratch_.runners;
  for (std::size_t i = 0; i < runners.size() && scratch_.budget > 0; ++i) {
    const Scratch::Runner& runner = runners[i];
    if (runner.paused || runner.uncomputed != 1) continue;
    if (runner.next_pages > 0 && !FreePagesFor(i, runner.next_pages, now)) continue;
    if (i >= runners.size()) return;  // it had to preempt itself
    AddChunk(runner.request, 1, runner.next_pages);
  }
}

// A step reads all weights, so up to ridge_tokens it takes as long for few tokens as for many. Where memory lets in no
// more requests than end, steps that only decode stay below that, and prompts are all that could fill them: computed in
// one step, they would make that one longer, and the next ones no shorter. So they are spread; not so thin that more
// come than are computed.
void Scheduler::SpreadPrompts() {
  constexpr std::int64_t kSteps = 8;
  const std::int64_t unused = options_.ridge_tokens - plan_.num_tokens;
  if (unused <= 0 || unused >= scratch_.budget || plan_.num_tokens == 0) return;
  const std::optional<std::int64_t> tokens = PromptsBoundByMemory();
  if (tokens.has_value()) scratch_.budget = std::min(scratch_.budget, std::max(unused, *tokens / kSteps));
}

// The tokens of prompts that run, and of those that memory has room for; none where that is all who wait.
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

// Without a seat in this step, only the load of its adapter begins.
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
  if (uses_adapter) PinInPlan(request->adapter);  // not a victim of its own admission
  if (!TakePages(admission, pages, now)) {
    if (uses_adapter) UnpinInPlan(request->adapter);
    return Admission::kBlocked;
  }
  if (uses_adapter && Pins(request->adapter) == 1) ++scratch_.distinct_adapters;
  --scratch_.free_seats;
  AddAdmission(admission, pages);
  return Admission::kAdmitted;
}

// Locks what it begins with and takes `pages` more. The page to copy from is kept until it is copied, but not at the
// price of the admission: where it is in the way, it goes.
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

// What this plan evicts is not copied. The last token is computed in any case, as in FindTail.
DependencyTree::InPage Scheduler::FindInPage(const Request& request, NodeId tail) const {
  const auto begin = static_cast<std::size_t>(Depth(tail) * options_.page_tokens);
  const std::span<const TokenId> next(request.tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                      request.tokens.end() - 1);
  const DependencyTree::InPage found = tree_->MatchInPage(tail, next);
  return found.tokens > 0 && kv_plan_.Kept(found.node) == found.node ? found : DependencyTree::InPage{};
}

// It waits while what it would begin with is on its way from the host tier, or there are too many others on their way
// for it to begin, and goes ahead with what the device has where there is nothing to fetch, or no room for it. What
// came for it may be gone when its turn comes: it is fetched again, but not for ever.
Scheduler::Admission Scheduler::TryFetch(Request* request, TimeNs now) {
  if (tree_->host_pages() == 0) return Admission::kAdmitted;
  const NodeId tail = FindTail(*request);
  std::int64_t pages = 0;
  for (NodeId at = tail; !tree_->OnDevice(at); at = tree_->Parent(at)) {
    if (tree_->Moving(at) && pages == 0 && IsUsable(at)) return Admission::kAdmitted;
    if (tree_->Moving(at) || kv_plan_.IsFetched(at)) return Admission::kPassedOver;
    ++pages;
  }
  // History comes to the device only where its adapter is: that may still fail.
  const bool arriving =
      request->adapter != kBaseModel && residency_->Get(request->adapter).device != TierState::kResident;
  if (arriving && pages > 0) return Admission::kPassedOver;
  if (pages == 0 || request->fetches == Request::kMostFetches) return Admission::kAdmitted;
  if (scratch_.fetches_in_flight >= KvTiers::kMaxFetches) return Admission::kPassedOver;
  if (scratch_.droppable_host < pages) return Admission::kAdmitted;
  const NodeId device_tail = DeviceTail(tail);
  // This plan evicts a part of what the rest would go behind. The next one fetches that, too: to compute again all that
  // is in the host tier would cost everybody more than this one waits.
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

// The deepest node that the tree has for its tokens, in either tier. The last token is computed in any case: its logits
// are wanted. What was found before is usually still there, so only what came since is looked for.
NodeId Scheduler::FindTail(Request& request) const {
  if (tree_ == nullptr) return {};
  const std::int64_t most = (static_cast<std::int64_t>(request.tokens.size()) - 1) / options_.page_tokens;
  NodeId from = tree_->Top(request.branch);
  if (tree_->Exists(request.found))
    from = request.found;
  else if (tree_->Exists(request.tail))
    from = request.tail;
  return request.found = tree_->Match(from, request.tokens, most);
}

// What it would begin with is on its way from the host tier.
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
