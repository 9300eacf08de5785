#include "simulate/plan_checker_for_test.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"
#include "base/prng.h"

namespace loramux {
namespace {

constexpr std::size_t kMostViolations = 3;
constexpr std::int64_t kMostPlans = 1'000'000;  // more than any world needs: otherwise it would never end

bool Refuses(const StepPlan& plan, const Request& request) {
  return std::find(plan.exhausted.begin(), plan.exhausted.end(), &request) != plan.exhausted.end();
}
bool Admits(const StepPlan& plan, const Request& request) {
  return std::any_of(plan.admissions.begin(), plan.admissions.end(),
                     [&](const auto& a) { return a.request == &request; });
}

bool Preempts(const StepPlan& plan, const Request* request) {
  return std::find(plan.preemptions.begin(), plan.preemptions.end(), request) != plan.preemptions.end();
}

bool Loads(const StepPlan& plan, AdapterGeneration adapter) {
  return std::any_of(plan.moves.begin(), plan.moves.end(),
                     [&](const Move& move) { return move.comes_to_device() && move.item == adapter; });
}

std::int64_t LoadsOf(const StepPlan& plan) {
  return std::count_if(plan.moves.begin(), plan.moves.end(), [](const Move& move) { return move.is_load(); });
}

bool EvictsFromDevice(const StepPlan& plan, ItemId item) {
  return std::any_of(plan.moves.begin(), plan.moves.end(),
                     [&](const Move& move) { return move.leaves(Tier::kDevice) && move.item == item; });
}

}  // namespace

void PlanChecker::Expect(bool holds, const View& view, const std::string& what) {
  if (holds || violations_.size() >= kMostViolations) return;
  violations_.push_back("plan " + std::to_string(plans_) + " at " + std::to_string(view.now) + " ns: " + what);
}

void PlanChecker::Planned(const PlannedStep& step) {
  CHECK_LT(++plans_, kMostPlans);
  residency_ = &step.residency;
  const View view{step.plan, step.scheduler, step.residency, step.now};
  CheckBatch(view);
  CheckMemory(view);
  CheckHostMemory(view);
  CheckAdapters(view);
  CheckStepTime(view);
  CheckQuotas(view);
  CheckPreemptions(view);
  CheckOrder(view);
  step.scheduler.tenants().active_tenants() > 1 ? CheckTurns(view) : CheckAgeBound(view);
  NoteOvertakings(view.plan);
  Digest(view);
  Count(step.plan.moves);
}

void PlanChecker::Moving(const MovePlan& plan) {
  if (residency_ == nullptr) return Count(plan.moves);
  CheckCopies(plan.moves, *residency_);
  const bool reads = plan.reason == MoveReason::kRegistered;
  const auto to_host = std::ranges::count_if(
      plan.moves, [](const Move& move) { return move.item.is_adapter() && move.to == Tier::kHost; });
  if (reads && (to_host != 1 || residency_->reading_ahead()) && violations_.size() < kMostViolations)
    violations_.push_back("after plan " + std::to_string(plans_) + ": reads more than one adapter at a time");
  Count(plan.moves);
}

// With HostCopies::kAlways, copies stay while their adapters have a name.
void PlanChecker::CheckCopies(const Moves& moves, const ResidencyManager& residency) {
  if (options_.host_copies != HostCopies::kAlways) return;
  for (const Move& move : moves) {
    if (!move.item.is_adapter() || !move.leaves(Tier::kHost)) continue;
    const AdapterResidency& gone = residency.Get(move.item.adapter);
    if ((!gone.registered || gone.retired) || violations_.size() >= kMostViolations) continue;
    violations_.push_back("after plan " + std::to_string(plans_) + ": evicts the copy of a registered adapter");
  }
}

void PlanChecker::Count(const Moves& moves) {
  for (const Move& move : moves) {
    const bool adapter = move.item.is_adapter();
    moved_.device_evictions += adapter && move.leaves(Tier::kDevice);
    moved_.host_evictions += adapter && move.leaves(Tier::kHost);
    moved_.history_evictions += !adapter && move.leaves(Tier::kDevice);
    moved_.backed_up += !adapter && move.to == Tier::kHost;
  }
}

// A request that is admitted although it was seen to run has begun again.
void PlanChecker::NoteOvertakings(const StepPlan& plan) {
  const auto stops = [this](RequestId request) {
    if (overtook_.erase(request) > 0) squashed_.insert(request);
  };
  for (const Request* gone : plan.preemptions) stops(gone->id);
  for (const PlannedAdmission& admission : plan.admissions) {
    stops(admission.request->id);
    if (admission.overtakes != RequestId{}) overtook_[admission.request->id] = admission.overtakes;
  }
}

// ---------------------------------------------------------------- Capacities

void PlanChecker::CheckBatch(const View& view) {
  const StepPlan& plan = view.plan;
  std::int64_t tokens = 0, prompt_tokens = 0, prompts = 0;
  std::set<const Request*> seen;
  for (const PlannedChunk& chunk : plan.chunks) {
    const Request& request = *chunk.request;
    const std::string who = "request " + std::to_string(request.id.value);
    Expect(seen.insert(&request).second, view, who + " is in the batch twice");
    Expect(chunk.num_tokens > 0 && chunk.num_tokens <= options_.Chunk(), view, who + ": a chunk out of range");
    Expect(chunk.num_tokens <= request.uncomputed(), view, who + " computes more tokens than it has uncomputed");
    Expect(chunk.admits == Admits(plan, request), view,
           who + ": its chunk and the plan's admissions disagree on whether it is admitted");
    Expect(chunk.admits || request.state == RequestState::kRunning, view,
           who + " is computed but neither runs nor is admitted");
    Expect(!Preempts(plan, &request), view, who + " is computed and preempted");
    tokens += chunk.num_tokens;
    if (chunk.num_tokens > 1 || !chunk.samples) prompt_tokens += chunk.num_tokens, ++prompts;
    Expect(options_.whole_prompt_tokens == 0 || chunk.samples, view, who + ": its prompt is split");
  }
  Expect(tokens == plan.num_tokens, view, "tokens are counted wrongly");
  Expect(tokens <= options_.max_batch_tokens, view, "too many tokens in the batch");
  Expect(static_cast<std::int64_t>(plan.chunks.size()) <= options_.max_running, view, "too many requests in the batch");
  Expect(options_.whole_prompt_tokens == 0 || prompts <= 1 || prompt_tokens <= options_.whole_prompt_tokens, view,
         "too many whole prompts in the batch");
}

// The pages freed by the plan and the free pages cover those it takes; each share keeps to its own part.
void PlanChecker::CheckMemory(const View& view) {
  const PoolStats pool = view.residency.pool(Tier::kDevice).Stats();
  std::int64_t adapters = 0, kv = 0;  // taken, less freed
  for (const Move& move : view.plan.moves) {
    const std::int64_t pages =
        move.item.is_adapter() ? view.residency.Get(move.item.adapter).version->layout.pages : move.pages;
    Expect(pages == move.pages, view, "a move counts other pages than its adapter has");
    const std::int64_t taken = pages * (move.comes_to_device() - move.leaves(Tier::kDevice));
    (move.item.is_adapter() ? adapters : kv) += taken;
  }
  for (const PlannedChunk& chunk : view.plan.chunks) {
    kv += chunk.new_pages + (chunk.takes_snapshot ? options_.state_pages : 0);
    Expect(!chunk.takes_snapshot ||
               (!chunk.admits && chunk.request->computed > 0 && chunk.request->computed % options_.page_tokens == 0),
           view, "a snapshot of request " + std::to_string(chunk.request->id.value) + " is not after full pages");
  }
  for (const Request* request : view.plan.preemptions) kv -= request->own_pages();
  const std::int64_t adapters_after = pool.used(PageCategory::kAdapter) + adapters,
                     kv_after = pool.used(PageCategory::kKv) + kv;
  Expect(adapters_after + kv_after <= device_pages_, view, "more pages than the device has");
  const std::int64_t share = AdapterPartPages(options_, device_pages_, view.residency.pool(Tier::kDevice).page_bytes());
  if (share == 0) return;
  Expect(adapters_after <= share, view, "adapters exceed their share");
  Expect(kv_after <= device_pages_ - share, view, "keys and values exceed their share");
}

// Adapters loaded to the host tier fit there, together with the evictions for them. (Keys and values make room when
// they arrive.)
void PlanChecker::CheckHostMemory(const View& view) {
  std::int64_t taken = 0;
  CheckCopies(view.plan.moves, view.residency);
  for (const Move& move : view.plan.moves) {
    if (move.to == Tier::kHost) taken += move.pages;
    if (!move.leaves(Tier::kHost)) continue;
    const AdapterGeneration gone = move.item.adapter;
    Expect(view.residency.Get(gone).host == TierState::kResident, view,
           "evicts an adapter from the host tier that is not resident there");
    Expect(!Loads(view.plan, gone), view, "evicts an adapter from the host tier that the same plan loads");
    taken -= move.pages;
  }
  if (taken <= 0) return;
  const PoolStats pool = view.residency.pool(Tier::kHost).Stats();
  Expect(taken <= pool.free_pages + pool.used(PageCategory::kKv), view, "more pages than the host tier has");
}

void PlanChecker::CheckAdapters(const View& view) {
  const std::int64_t loading = view.residency.Stats().loading + LoadsOf(view.plan);
  Expect(loading <= options_.max_loads_in_flight, view, "too many loads in flight");
  std::set<AdapterGeneration> distinct;
  for (const Request* request : view.scheduler.running()) {
    if (request->adapter != kBaseModel && !Preempts(view.plan, request)) distinct.insert(request->adapter);
  }
  for (const PlannedAdmission& admission : view.plan.admissions) {
    const AdapterGeneration adapter = admission.request->adapter;
    if (adapter == kBaseModel) continue;
    distinct.insert(adapter);
    const AdapterResidency& residency = view.residency.Get(adapter);
    const bool begins = std::any_of(view.plan.moves.begin(), view.plan.moves.end(), [&](const Move& move) {
      return move.why == MoveReason::kBegins && move.item == adapter && residency.host == TierState::kResident;
    });
    Expect(residency.device == TierState::kResident || residency.arriving() || begins, view,
           "admits a request whose adapter is neither resident nor arriving");
  }
  const auto most = static_cast<std::size_t>(options_.max_distinct_adapters);
  std::set<AdapterGeneration> computed;
  for (const PlannedChunk& chunk : view.plan.chunks) {
    if (chunk.request->adapter != kBaseModel) computed.insert(chunk.request->adapter);
  }
  const bool by_step = options_.adapter_bound == AdapterBound::kStep;
  Expect(most == 0 || (by_step ? computed : distinct).size() <= most, view, "too many distinct adapters");
  for (const AdapterGeneration adapter : distinct)
    Expect(!EvictsFromDevice(view.plan, adapter), view, "evicts an adapter in use");
}

// A plan admits nothing that makes the decoding step of the whole batch longer than max_decode_step, unless it is
// alone. Summed anew, because the planner adds up one by one. A step that waits for loads admits later.
void PlanChecker::CheckStepTime(const View& view) {
  if (options_.max_decode_step == 0 || view.plan.admissions.empty()) return;
  StepLoad load;
  std::map<AdapterGeneration, std::int64_t> ranks;
  const auto count = [&](const Request& request) {
    ++load.decode_sequences;
    load.decode_context += static_cast<std::int64_t>(request.tokens.size());
    if (request.adapter == kBaseModel) return;
    const std::int64_t rank = view.residency.Get(request.adapter).version->layout.max_rank;
    ++load.adapter_tokens;
    load.token_ranks += rank;
    ranks[request.adapter] = rank;
  };
  for (const Request* request : view.scheduler.running()) {
    if (!Preempts(view.plan, request)) count(*request);
  }
  for (const PlannedAdmission& admission : view.plan.admissions) count(*admission.request);
  for (const auto& [adapter, rank] : ranks) {
    load.rank_sum += rank;
    load.max_rank = std::max(load.max_rank, rank);
  }
  load.distinct_adapters = static_cast<std::int64_t>(ranks.size());
  const double seconds = static_cast<double>(options_.max_decode_step) / kNsPerSecond;
  // A sum in another order may differ in the last bit.
  Expect(load.decode_sequences == 1 || options_.costs->SecondsOf(load) <= seconds * (1 + 1e-12), view,
         "admits a request with which a decoding step is longer than max_decode_step");
}

// Lanes may use quota that others leave, but the same tokens are not used twice. A request in a lane with nothing
// running, and one that has waited too long, need no quota.
void PlanChecker::CheckQuotas(const View& view) {
  const QueueOrder& queue = view.scheduler.queue();
  if (!queue.has_quotas()) return;
  std::array<double, kMaxLanes> use = {};
  for (const Request* request : view.scheduler.running()) {
    if (!Preempts(view.plan, request))
      use[static_cast<std::size_t>(request->lane)] += static_cast<double>(request->quota_tokens);
  }
  double left = 0, taken = 0;
  for (std::int32_t lane = 0; lane < queue.lanes(); ++lane)
    left += std::max(0.0, queue.Quota(lane) - use[static_cast<std::size_t>(lane)]);
  const bool one_tenant = view.scheduler.tenants().active_tenants() <= 1;
  const Request* const turn = one_tenant ? nullptr : OverdueTurn(view);
  for (const PlannedAdmission& admission : view.plan.admissions) {
    const Request& request = *admission.request;
    const auto tokens = static_cast<double>(request.quota_tokens);
    double& of_lane = use[static_cast<std::size_t>(request.lane)];
    const bool waited =
        options_.overdue_first && (one_tenant ? view.now - request.arrival > options_.age_bound : &request == turn);
    if (of_lane > 0 && !waited) taken += tokens;
    of_lane += tokens;
  }
  Expect(taken <= left, view, "lanes use more tokens than all quotas have left");
}

// ---------------------------------------------------------------- Promises

// With one tenant, the youngest running request is preempted first, and never for a younger one. A request that
// overtook another is preempted for that one.
void PlanChecker::CheckPreemptions(const View& view) {
  if (view.scheduler.tenants().active_tenants() > 1) return;
  for (const Request* gone : view.plan.preemptions) {
    if (overtook_.contains(gone->id)) continue;
    const std::string who = "request " + std::to_string(gone->id.value) + " is preempted";
    for (const Request* request : view.scheduler.running()) {
      Expect(request->id <= gone->id || Preempts(view.plan, request), view,
             who + " while a younger request continues to run");
    }
    for (const PlannedAdmission& admission : view.plan.admissions) {
      Expect(admission.request->id < gone->id, view, who + " although a younger request is admitted");
    }
  }
}

// Whether the request cannot start yet: its adapter or history is still to arrive, or the link accepts no more
// transfers.
bool PlanChecker::Arrives(const View& view, const Request& request) const {
  if (Refuses(view.plan, request)) return true;  // it ends
  if (request.adapter != kBaseModel) {
    const AdapterResidency& adapter = view.residency.Get(request.adapter);
    const std::int64_t loading = view.residency.Stats().loading + LoadsOf(view.plan);
    if (adapter.device == TierState::kLoading || Loads(view.plan, request.adapter)) return true;
    if (adapter.device == TierState::kAbsent) return loading >= options_.max_loads_in_flight;
  }
  const Moves& moves = view.plan.moves;
  const auto own = [&](const Move& move) { return move.is_fetch() && move.requester == request.id; };
  if (std::any_of(moves.begin(), moves.end(), own)) return true;
  const DependencyTree& tree = view.scheduler.tree();
  if (!tree.nodes().Exists(request.found)) return false;
  const std::int64_t fetches =
      view.scheduler.tiers().fetches_in_flight() +
      std::count_if(moves.begin(), moves.end(), [](const Move& move) { return move.is_fetch(); });
  NodeId at = request.found;
  for (; !tree.tiers().OnDevice(at); at = tree.nodes().Parent(at)) {
    if (tree.nodes().At(at).moving() || fetches >= KvTiers::kMaxFetches) return true;
    for (const Move& move : moves) {  // another request's fetch of the same path
      if (!move.is_fetch()) continue;
      NodeId on = move.item.node;
      while (tree.nodes().Depth(on) > tree.nodes().Depth(at)) on = tree.nodes().Parent(on);
      if (on == at) return true;
    }
  }
  if (at == request.found) return false;
  while (tree.nodes().Depth(at) > 0 && !EvictsFromDevice(view.plan, at)) at = tree.nodes().Parent(at);
  return tree.nodes().Depth(at) > 0;  // this plan evicts part of it, which the next plan fetches too
}

// Within a tenant (and lane), the request with the earliest due time is admitted first. That time is at most one age
// bound after the arrival.
void PlanChecker::CheckOrder(const View& view) {
  for (const Request* request : view.scheduler.running()) {
    Expect(!request->late, view, "request " + std::to_string(request->id.value) + " runs although it was given up");
  }
  const QueueOrder& queue = view.scheduler.queue();
  for (const PlannedAdmission& admission : view.plan.admissions) {
    const Request& in = *admission.request;
    const std::string who = "request " + std::to_string(in.id.value);
    Expect(std::abs(in.due - in.arrival) <= options_.age_bound, view, who + " is due beyond the age bound");
    const bool out_of_turn = view.now - in.arrival > std::min(options_.age_bound, options_.fairness.max_wait);
    Expect(admission.overtakes == RequestId{} || !squashed_.contains(in.id), view,
           who + " overtakes another request although it was already squashed for overtaking");
    if (queue.residents_first() || out_of_turn || admission.overtakes != RequestId{}) continue;
    for (const Request* waits : view.scheduler.waiting()) {
      if (waits->tenant != in.tenant || waits->lane != in.lane || !(UrgencyOf(*waits) < UrgencyOf(in))) continue;
      const auto& late = view.plan.deferred;
      if (std::find(late.begin(), late.end(), waits) != late.end()) continue;
      Expect(Admits(view.plan, *waits) || Arrives(view, *waits), view,
             who + " is admitted before request " + std::to_string(waits->id.value) + ", which is due earlier");
    }
  }
}

// With one tenant: requests that have waited longer than the age bound precede all others, the oldest first. The oldest
// one's adapter stays resident, unless an older running request needs the memory. With S-LoRA's admission any running
// request does: it never gives way to a waiting one.
void PlanChecker::CheckAgeBound(const View& view) {
  if (!options_.overdue_first) return;
  std::int64_t left = options_.lookahead;
  for (const Request* request : view.scheduler.waiting()) {
    if (view.now - request->arrival <= options_.age_bound || left-- == 0) return;
    CheckNext(view, *request, "beyond the age bound");
    if (request != view.scheduler.waiting().front()) continue;
    const auto running = view.scheduler.running();
    const bool older_runs = !running.empty() && (options_.reserve_output || running.front()->id < request->id);
    const bool loses = request->adapter != kBaseModel && EvictsFromDevice(view.plan, request->adapter);
    Expect(!loses || older_runs, view,
           "request " + std::to_string(request->id.value) + ", beyond the age bound, loses its adapter");
  }
}

// The oldest request among the lanes' first turns that are overdue; null: none is overdue.
const Request* PlanChecker::OverdueTurn(const View& view) {
  if (!options_.overdue_first) return nullptr;
  const Request* oldest = nullptr;
  for (std::int32_t lane = 0; lane < view.scheduler.queue().lanes(); ++lane) {
    view.scheduler.tenants().Order(view.now, lane, 1, order_);
    if (order_.turns.empty() || !order_.turns.front().standing.overdue) continue;
    const Request* first = order_.turns.front().request;
    if (oldest == nullptr || first->id < oldest->id) oldest = first;
  }
  return oldest;
}

// With several tenants: a tenant that has waited too long for its turn is next.
void PlanChecker::CheckTurns(const View& view) {
  const Request* const next = OverdueTurn(view);
  if (next == nullptr || Admits(view.plan, *next) || Arrives(view, *next)) return;
  const std::string who = "request " + std::to_string(next->id.value);
  Expect(view.plan.admissions.empty(), view, who + ", whose tenant's turn is overdue, is passed over");
}

void PlanChecker::CheckNext(const View& view, const Request& next, const char* why) {
  if (Refuses(view.plan, next)) return;
  const std::string who = "request " + std::to_string(next.id.value) + ", " + why;
  const bool absent = next.adapter != kBaseModel && view.residency.Get(next.adapter).device == TierState::kAbsent;
  if (absent && !Loads(view.plan, next.adapter)) {
    for (const Move& load : view.plan.moves) {
      if (!load.is_load()) continue;
      const auto older = [&](const Request* request) {
        return request->adapter == load.item.adapter && view.now - request->arrival > options_.age_bound &&
               request->id < next.id;
      };
      const auto waiting = view.scheduler.waiting();
      Expect(std::any_of(waiting.begin(), waiting.end(), older), view,
             who + ", lacks its adapter, but the plan loads another request's");
    }
  }
  if (Admits(view.plan, next) || Arrives(view, next)) return;
  for (const PlannedAdmission& admission : view.plan.admissions) {
    Expect(admission.request->id < next.id, view,
           who + ", is passed over for request " + std::to_string(admission.request->id.value));
  }
}

void PlanChecker::Digest(const View& view) {
  const auto add = [this](std::uint64_t value) { digest_ = SplitMix64(digest_ ^ value); };
  add(static_cast<std::uint64_t>(view.now));
  for (const PlannedChunk& chunk : view.plan.chunks) {
    add(chunk.request->id.value << 20 ^ static_cast<std::uint64_t>(chunk.num_tokens));
    add(static_cast<std::uint64_t>(chunk.new_pages) << 2 ^
        static_cast<std::uint64_t>(2 * chunk.admits + chunk.samples));
    if (chunk.takes_snapshot) add(1);
  }
  for (const Request* request : view.plan.preemptions) add(request->id.value);
  for (const Move& move : view.plan.moves) {
    add(std::uint64_t{move.item.node.index} << 32 ^ move.item.node.generation ^ move.item.adapter.value);
    add(move.requester.value << 32 ^ static_cast<std::uint64_t>(move.pages));
    add(static_cast<std::uint64_t>(move.from) << 16 ^ static_cast<std::uint64_t>(move.to) << 8 ^
        static_cast<std::uint64_t>(move.why));
  }
}

}  // namespace loramux
