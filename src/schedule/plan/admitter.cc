#include "schedule/plan/admitter.h"

#include <algorithm>

namespace loramux {

// Few adapters are arriving at a time. If the device has another adapter of the same content, the history depends on
// that one until this one has arrived; until then no request begins with this one.
void Admitter::LookAtArrivals() {
  const PlanningView& view = draft_.view;
  const TimeNs now = draft_.room.now();
  const bool alone = view.queues.running().empty() && draft_.turns.all().size() <= 1;
  for (const AdapterGeneration generation : view.residency.Arriving()) {
    const AdapterResidency& adapter = view.residency.Get(generation);
    if (view.pages.branches().IsShared(adapter.slot)) continue;
    const TimeNs elapsed = now - adapter.transfer_started;
    if (LeadSuffices(*adapter.progress, elapsed, view.step_floor.value(), alone)) draft_.room.MarkUsable(generation);
  }
  draft_.prefixes.LookAtFetches(now, alone);
}

AdmissionOutcome Admitter::TryAdmit(Request* request) {
  if (request->adapter != kBaseModel) draft_.room.Want(request->adapter);
  if (draft_.free_seats > 0 && !draft_.rules.Reserve(draft_, *request)) return AdmissionOutcome::kBlocked;
  if (request->adapter != kBaseModel) {
    Draft& room = draft_.room;
    const TierState state = draft_.view.residency.Get(request->adapter).device;
    const bool loading = (state == TierState::kLoading && !room.Is(request->adapter, Draft::kUsable)) ||
                         room.Is(request->adapter, Draft::kLoads);
    const bool absent = state == TierState::kAbsent || room.Is(request->adapter, Draft::kEvicted);
    if (loading || absent) {
      const AdmissionOutcome outcome = TryLoadFor(request, absent && !loading);
      if (!BeginsCold(*request)) return outcome;
    }
  }
  if (draft_.full()) return AdmissionOutcome::kPassedOver;
  if (const AdmissionOutcome outcome = TryFetch(request); outcome != AdmissionOutcome::kAdmitted) return outcome;
  if (draft_.ExceedsBatch(*request)) return BeyondBatch(*request);
  return Admit(request);
}

// Where another adapter of the same content is on the device, the history depends on that one until this one has
// arrived.
bool Admitter::BeginsCold(Request& request) const {
  const PlanningView& view = draft_.view;
  const SystemSpec& options = view.options;
  const bool overlaps = options.cold_start == ColdStart::kOverlap;
  const bool waits = options.cold_start_policy == ColdStartPolicy::kWait || draft_.rules.LoadsOnlyInSteps();
  if (waits && !overlaps) return false;
  const AdapterResidency& adapter = view.residency.Get(request.adapter);
  const Draft& room = draft_.room;
  const bool loads_now = adapter.device == TierState::kAbsent && adapter.host == TierState::kResident &&
                         room.Is(request.adapter, Draft::kLoads) && !room.host().Evicts(request.adapter);
  if (!adapter.on_way_from_host() && !loads_now) return false;
  if (view.pages.branches().IsShared(adapter.slot)) return false;
  if (overlaps) return true;
  // The processor beside a device computes linear layers alone, so the step would wait for the rest.
  if (!options.reads_host_tier && !adapter.version->layout.own.empty()) return false;
  return options.reads_host_tier || BeginsFromHost(options.cold_start_policy, CostsOf(request));
}

ColdStartCosts Admitter::CostsOf(Request& request) const {
  const PlanningView& view = draft_.view;
  const PerformanceModel* const model = view.options.costs.get();
  if (view.options.cold_start_policy != ColdStartPolicy::kAuto || model == nullptr) return {};
  const std::int64_t cached = draft_.prefixes.Depth(draft_.prefixes.PlannedTail(request)) * view.options.page_tokens;
  const std::int64_t tokens = std::max<std::int64_t>(1, draft_.ChunkTokens(request, request.uncomputed() - cached));
  const ExpectedArrival arrival =
      ExpectArrival(view.residency, view.worth.reload_costs(), request.adapter, draft_.room.now());
  const TimeNs step = view.queues.running().empty() ? 0 : view.step_floor.value();
  const std::int64_t rank = view.residency.Get(request.adapter).version->layout.max_rank;
  return CostsOfColdStart(*model, tokens, request.computed + cached, rank, arrival, step);
}

AdmissionOutcome Admitter::TryLoadFor(Request* request, bool absent) {
  if (const auto outcome = draft_.rules.AdmitCold(*this, request)) return *outcome;
  if (absent && draft_.loads_pause) return AdmissionOutcome::kPassedOver;
  const AdmissionOutcome outcome = absent ? TryLoadOf(request) : AdmissionOutcome::kPassedOver;
  if (!absent || draft_.room.Is(request->adapter, Draft::kLoads)) {
    const bool could_begin = draft_.free_seats > 0 && draft_.budget > 0 && draft_.blocked == nullptr;
    draft_.awaits_load |= could_begin && draft_.rules.HoldsForLoads();
  }
  return outcome;
}

AdmissionOutcome Admitter::Admit(Request* request) {
  Draft& room = draft_.room;
  const NodeId tail = draft_.prefixes.PlannedTail(*request);
  const std::int64_t cached = draft_.prefixes.Depth(tail);  // pages
  if (!draft_.rules.MayCompute(draft_, request->uncomputed() - cached * draft_.view.options.page_tokens))
    return AdmissionOutcome::kBlocked;
  const bool uses_adapter = request->adapter != kBaseModel;
  if (uses_adapter) room.Use(request->adapter);  // so that its own admission does not evict it
  PlannedAdmission admission{request, tail, {}};
  if (!TakePages(admission)) {
    if (uses_adapter) room.EndUse(request->adapter);
    return AdmissionOutcome::kBlocked;
  }
  --draft_.free_seats;
  draft_.AddAdmission(admission, PagesBeside(admission));
  if (uses_adapter && room.Is(request->adapter, Draft::kLoads)) draft_.room.BeginWithLoad(request->adapter);
  return AdmissionOutcome::kAdmitted;
}

std::int64_t Admitter::PagesBeside(const PlannedAdmission& admission) const {
  return draft_.view.PagesToCompute(*admission.request) - draft_.prefixes.Depth(admission.tail);
}

// A snapshot stays while its pages are copied. Where nothing else runs, its room would never come: then the
// request begins from an earlier one, or from nothing.
bool Admitter::TakePagesAfterSnapshot(PlannedAdmission& admission) {
  Draft& room = draft_.room;
  const DependencyTree& tree = draft_.view.tree;
  const bool alone = draft_.view.queues.running().empty() && draft_.plan.admissions.empty();
  for (NodeId from = admission.tail;; from = draft_.prefixes.Beginning(tree.BeginningBefore(from))) {
    const bool is_top = tree.nodes().Depth(from) == 0;
    admission.tail = tree.nodes().KvNode(from);
    admission.in_page = {is_top ? NodeId{} : from, 0};
    const std::int64_t pages = PagesBeside(admission);
    room.history().Use(from);
    if (room.MakeRoom(PageCategory::kKv, pages + draft_.view.GrowthReserve())) {
      room.Take(pages);
      return true;
    }
    room.history().EndUse(from, room.now());
    if (is_top || !alone) return false;
  }
}

// The page to copy from is kept until it is copied, but it is evicted if the admission would otherwise fail.
bool Admitter::TakePages(PlannedAdmission& admission) {
  if (draft_.view.tree.state_pages() > 0) return TakePagesAfterSnapshot(admission);
  Draft& room = draft_.room;
  const std::int64_t pages = PagesBeside(admission), wanted = pages + draft_.view.GrowthReserve();
  admission.in_page = draft_.prefixes.FindInPage(*admission.request, admission.tail);
  if (admission.in_page.tokens > 0) {
    room.history().Use(admission.in_page.node);
    if (room.MakeRoom(PageCategory::kKv, wanted)) {
      room.Take(pages);
      return true;
    }
    room.history().EndUse(admission.in_page.node, room.now());
    admission.in_page = {};
  }
  room.history().Use(admission.tail);
  if (!room.MakeRoom(PageCategory::kKv, wanted)) {
    room.history().EndUse(admission.tail, room.now());
    return false;
  }
  room.Take(pages);
  return true;
}

// No request passes an overdue one, nor the first turn if its tenant is overdue.
AdmissionOutcome Admitter::BeyondBatch(const Request& request) const {
  const auto& turns = draft_.turns.all();
  const bool turn_overdue = !turns.empty() && turns.front().request == &request && turns.front().standing.overdue;
  const bool may_pass = draft_.rules.SkipsBeyondBatch() && !draft_.turns.IsOverdue(request) && !turn_overdue;
  return may_pass ? AdmissionOutcome::kPassedOver : AdmissionOutcome::kBlocked;
}

// ---------------------------------------------------------------- Fetches

// The request waits while its history is on the way from the host tier, or while too many fetches are under way. It
// goes ahead with what the device has if there is nothing to fetch or no room for it, unless room is being made.
// Fetched pages may be evicted before the request gets its turn; then they are fetched again, at most
// Request::kMostFetches times.
AdmissionOutcome Admitter::TryFetch(Request* request) {
  const PlanningView& view = draft_.view;
  Draft& room = draft_.room;
  if (view.tree.tiers().host_pages() == 0) return AdmissionOutcome::kAdmitted;
  const NodeId tail = FindTail(view.tree, *request);
  std::int64_t pages = 0;
  if (const auto outcome = LookAtPath(tail, pages)) return *outcome;
  // History is fetched only once its adapter is on the device, because the load may still fail.
  const bool arriving =
      request->adapter != kBaseModel && view.residency.Get(request->adapter).device != TierState::kResident;
  if (arriving && pages > 0) return AdmissionOutcome::kPassedOver;
  if (pages == 0 || request->fetches == Request::kMostFetches) return AdmissionOutcome::kAdmitted;
  if (room.host().fetches_in_flight() >= KvTiers::kMaxFetches) return AdmissionOutcome::kPassedOver;
  if (room.host().droppable() < pages) return AdmissionOutcome::kAdmitted;
  const NodeId device_tail = draft_.prefixes.DeviceTail(tail);
  // This plan evicts part of the path that the fetched pages depend on. The next plan fetches that part too. To
  // recompute everything that the host tier has would cost all requests more than this one loses by waiting.
  if (room.history().Staying(device_tail) != device_tail) return AdmissionOutcome::kPassedOver;
  room.history().Use(device_tail);
  if (!room.MakeRoom(PageCategory::kKv, pages + view.GrowthReserve())) {
    room.history().EndUse(device_tail, room.now());
    // What has to leave first is being copied, which takes less than to compute the history again.
    return room.history().spares_uncopied() ? AdmissionOutcome::kBlocked : AdmissionOutcome::kAdmitted;
  }
  draft_.AddFetch(request, tail, pages, /*ahead=*/false);
  return AdmissionOutcome::kPassedOver;
}

std::optional<AdmissionOutcome> Admitter::LookAtPath(NodeId tail, std::int64_t& pages) const {
  const DependencyTree& tree = draft_.view.tree;
  for (NodeId at = tail; !tree.tiers().OnDevice(at); at = tree.nodes().Parent(at)) {
    if (tree.nodes().At(at).moving() && pages == 0 && draft_.prefixes.IsUsable(at)) return AdmissionOutcome::kAdmitted;
    if (tree.nodes().At(at).moving() || draft_.room.history().IsFetched(at)) return AdmissionOutcome::kPassedOver;
    ++pages;
  }
  return std::nullopt;
}

// ---------------------------------------------------------------- Loads

AdmissionOutcome Admitter::TryLoad(AdapterGeneration generation) {
  Draft& room = draft_.room;
  if (room.Is(generation, Draft::kEvicted)) return AdmissionOutcome::kBlocked;  // this plan needs its pages
  if (room.loads_in_flight() >= draft_.view.options.max_loads_in_flight) {
    draft_.loads_wait = true;
    return AdmissionOutcome::kPassedOver;
  }
  const AdapterResidency& adapter = draft_.view.residency.Get(generation);
  const std::int64_t reserve = draft_.view.partitioned() ? 0 : draft_.view.GrowthReserve();
  if (!room.MakeRoom(PageCategory::kAdapter, adapter.pages + reserve)) return AdmissionOutcome::kBlocked;
  room.Load(adapter);
  return AdmissionOutcome::kPassedOver;
}

AdmissionOutcome Admitter::TryLoadOf(Request* request) {
  const AdmissionOutcome outcome = TryLoad(request->adapter);
  const bool refuses = draft_.view.options.pool_full == PoolFull::kRefuse && !draft_.full();
  if (outcome != AdmissionOutcome::kBlocked || !refuses) return outcome;
  const Draft& room = draft_.room;
  const std::int64_t idle = room.free(PageCategory::kAdapter) + room.evictable(PageCategory::kAdapter, true);
  if (room.distinct() == 0 || idle >= draft_.view.residency.Get(request->adapter).pages) return outcome;
  draft_.plan.exhausted.push_back(request);
  return AdmissionOutcome::kPassedOver;
}

void Admitter::LoadKept() {
  if (draft_.memory_short) return;  // no request is admitted anyway
  for (const AdapterGeneration generation : draft_.view.residency.Kept()) {
    if (draft_.view.residency.Get(generation).device != TierState::kAbsent) continue;
    if (TryLoad(generation) != AdmissionOutcome::kBlocked) continue;
    draft_.kept_waits = true;
    return;
  }
}

// Later requests must not take the room from an earlier one.
bool Admitter::LoadAhead(const Request* request, std::int64_t& most) {
  if (most == 0) return false;
  if (draft_.IsAdmitted(request)) return true;
  --most;
  if (request->adapter == kBaseModel) return true;
  Draft& room = draft_.room;
  room.Want(request->adapter);
  const bool absent = draft_.view.MustLoad(*request) && !room.Is(request->adapter, Draft::kLoads) &&
                      !room.Is(request->adapter, Draft::kEvicted);
  return !absent || TryLoad(request->adapter) != AdmissionOutcome::kBlocked;
}

void Admitter::LoadForOldest(std::int64_t most) {
  for (const Request* request : draft_.view.queues.waiting()) {
    if (!LoadAhead(request, most)) return;
  }
}

void Admitter::LoadForFirst(std::int64_t most) {
  for (const Request* request : draft_.turns.overdue()) {
    if (!LoadAhead(request, most)) return;
  }
  for (const Turn& turn : draft_.turns.all()) {
    if (!draft_.turns.IsOverdue(*turn.request) && !LoadAhead(turn.request, most)) return;
  }
}

}  // namespace loramux
