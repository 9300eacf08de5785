#include "schedule/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "costs/service_times.h"
#include "schedule/baselines/baselines.h"
#include "schedule/plan/cold_start.h"
#include "schedule/plan_by_model.h"

namespace loramux {
namespace {

// If each side evicts only its own pages, no adapter can stay until its history is gone.
SystemSpec Consistent(SystemSpec options) {
  options.maintain_dependency = options.maintain_dependency && !options.partitioned();
  // Prompts that are never split are neither spread nor arranged.
  options.spread_prompts &= options.whole_prompt_tokens == 0;
  options.prompts_by_objective &= options.whole_prompt_tokens == 0;
  const std::int64_t size = options.page_tokens;
  options.state_snapshot_tokens = (options.state_snapshot_tokens + size - 1) / size * size;  // where pages are full
  return options;
}

TimeNs WaitForAdapter(const Request& request, const AdapterResidency& adapter, TimeNs now) {
  const TimeNs there = adapter.device == TierState::kResident ? adapter.resident_since : now;
  return std::max<TimeNs>(0, there - request.arrival);
}

// A host tier no larger than the device holds recently evicted pages, and recency predicts best which of them come
// back. For pages that stay long, visits predict better. So the bonus grows with the part of the host tier that
// exceeds the size of the device.
TimeNs HostBonus(TimeNs full, std::int64_t device_pages, const PagePool& host) {
  if (host.capacity_pages() <= device_pages) return 0;
  return static_cast<TimeNs>(static_cast<double>(full) *
                             (1 - static_cast<double>(device_pages) / static_cast<double>(host.capacity_pages())));
}

// Loads into the CPU caches what the evictions of pages among the next few moves after `moves[i]` will read: in two
// stages, because the slot's address depends on the node.
void PrefetchEvictions(const DependencyTree& tree, const Moves& moves, std::size_t i) {
  constexpr std::size_t kNode = 8, kSlot = 4;
  const auto evicts = [&moves](std::size_t at) {
    return at < moves.size() && !moves[at].item.is_adapter() && moves[at].leaves(Tier::kDevice);
  };
  if (evicts(i + kNode)) {
    const TreeNode& node = tree.nodes()[moves[i + kNode].item.node.index];
    __builtin_prefetch(&node, 1);
    __builtin_prefetch(&node.host_page, 1);
  }
  if (evicts(i + kSlot)) {
    const std::uint32_t index = moves[i + kSlot].item.node.index;
    tree.index().PrefetchRemove(index);
    __builtin_prefetch(&tree.nodes()[tree.nodes()[index].parent], 1);
  }
}

}  // namespace

Scheduler::Scheduler(SystemSpec options, const SchedulerParts& parts)
    : options_(Consistent(std::move(options))),
      device_(parts.device),
      residency_(parts.residency),
      tree_(parts.tree),
      tiers_(parts.tiers),
      queues_(options_, residency_, parts.queue, parts.predictor),
      pages_(options_, device_, residency_, tree_, tiers_),
      expected_(options_.adapter_prefetch, residency_, options_.expectation),
      worth_(parts.eviction, residency_, expected_, options_.page_tokens),
      view_{.options = options_,
            .device = device_,
            .residency = residency_,
            .tree = tree_,
            .tiers = tiers_,
            .queues = queues_,
            .pages = pages_,
            .worth = worth_,
            .expected = expected_,
            .step_floor = step_floor_,
            .prompt_pace = prompt_pace_,
            .discardable = discardable_,
            .adapter_pages = AdapterPartPages(options_, device_.capacity_pages(), device_.page_bytes())},
      rules_(MakeStepRules(options_, parts.queue)),
      planner_(std::make_unique<StepPlanner>(view_, residency_, tree_, parts.eviction, rules_)),
      background_(view_, planner_->room(), rules_, outlook_) {
  CHECK_GT(options_.page_tokens, 0);
  CHECK_GT(options_.max_batch_tokens, 0);
  worth_.set_batch_window(options_.batch_window);
  worth_.set_usage_window(options_.usage_window);
  planner_->history().set_context(worth_.context());
  has_clock_ = parts.eviction.has_clock();
  learns_reuse_ = parts.eviction.weighs_reuse() || options_.host_bonus > 0;
  discardable_ = options_.discard_share > 0 ? static_cast<double>(options_.max_batch_tokens) : 0;
  const bool depends = options_.maintain_dependency;
  residency_.set_listener(
      {.dropped = [this, depends](const AdapterResidency& adapter) { pages_.ForgetAdapter(adapter, depends); },
       .failed = [this, depends](const AdapterResidency& adapter) { pages_.LoadFailed(adapter, depends); },
       .loaded = [this](const AdapterResidency& adapter, TimeNs took) { worth_.SawLoad(adapter, took); }});
  if (options_.costs != nullptr) {
    ExpectReloads(*options_.costs, device_.page_bytes(), options_.page_tokens, worth_.reload_costs());
    constexpr double kLongest = 60;  // seconds; bounds the values of a profile
    step_floor_.Add(static_cast<TimeNs>(std::min(kLongest, ShortestStepSeconds(*options_.costs)) * kNsPerSecond));
  }
  if (options_.cold_start_policy != ColdStartPolicy::kWait) {
    if (options_.reads_host_tier || options_.costs != nullptr)
      worth_.UseAssist(options_.reads_host_tier ? nullptr : options_.costs.get());
  }
  tree_.set_host_bonus(HostBonus(options_.host_bonus, device_.capacity_pages(), residency_.pool(Tier::kHost)));
}

Scheduler::~Scheduler() { residency_.set_listener({}); }

// ---------------------------------------------------------------- The life of a request

void Scheduler::Add(Request* request) {
  pages_.Enter(request);
  const std::int64_t cached = tree_.nodes().KvDepth(request->tail) * options_.page_tokens;
  queues_.Enter(request, cached);
  expected_.Arrived(*request, request->arrival);
}

void Scheduler::Remove(Request* request, TimeNs now, bool by_itself) {
  const bool runs = request->state == RequestState::kRunning;
  queues_.Leave(request, now, by_itself);
  rules_.Left(*request);
  runs ? pages_.LeaveRunning(request, now) : pages_.LeaveWaiting(request, queues_.waiting());
  expected_.Left(*request, now);
}

// What it has computed is lost, but not to a preemption: the counts of what those cost leave it out.
void Scheduler::ChangeAdapter(Request* request, AdapterGeneration adapter, TimeNs now) {
  expected_.Left(*request, now);
  if (request->state == RequestState::kRunning) {
    rules_.Left(*request);
    ++request->preemptions;
    queues_.Return(request, now);
    pages_.Return(request, now);
  }
  request->computed_before = 0;
  pages_.ChangeAdapter(request, adapter, queues_.waiting());
  expected_.Arrived(*request, now);
}

void Scheduler::Begin(const PlannedAdmission& admission, TimeNs now) {
  Request* request = admission.request;
  queues_.Admit(request, now);
  rules_.Began(*request, admission.overtakes);
  if (request->first_scheduled < 0) {
    request->first_scheduled = now;
    if (request->adapter != kBaseModel) CountBegin(*request, residency_.Get(request->adapter), now);
  }
  stats_.early_admissions += pages_.Admit(admission, now);
  CountResume(*request, 1);
}

void Scheduler::CountBegin(Request& request, const AdapterResidency& adapter, TimeNs now) {
  request.adapter_wait = WaitForAdapter(request, adapter, now);
  stats_.adapter_wait_total += request.adapter_wait;
  const bool awaited = options_.cold_start == ColdStart::kOverlap && adapter.device == TierState::kLoading;
  if (awaited && adapter.users == 0) ++stats_.cold_starts;
  if (!ComputesFromHost(options_, adapter)) return;
  ++(adapter.host == TierState::kResident ? stats_.cold_begins.whole : stats_.cold_begins.while_read);
}

void Scheduler::CountResume(const Request& request, std::int64_t sign) {
  const std::int64_t found = std::min(request.computed, request.computed_before);
  const auto count = [&](ResumedTokens& tokens) {
    tokens.found += sign * found;
    tokens.recomputed += sign * (request.computed_before - found);
  };
  count(stats_.resumed);
  if (rules_.WasSquashed(request)) count(stats_.resumed_squashes);
}

void Scheduler::Preempt(Request* request, TimeNs now, bool begins_again) {
  if (!begins_again) request->computed_before = request->computed;
  stats_.squashes += rules_.Preempted(*request, begins_again);
  ++stats_.preemptions;
  ++request->preemptions;
  queues_.Return(request, now);
  pages_.Return(request, now);
}

void Scheduler::Advance(Request* request, std::int64_t num_tokens, TimeNs now) {
  pages_.EndCopy(request, now);
  worth_.StepEnded(now);
  request->computed += num_tokens;
  CHECK_LE(request->computed, static_cast<std::int64_t>(request->tokens.size()));
  queues_.Charge(request, now);
  pages_.Fill(request, now);
  const auto most = static_cast<double>(8 * options_.max_batch_tokens);
  discardable_ = std::min(most, discardable_ + options_.discard_share * static_cast<double>(num_tokens));
}

// The request does not fetch again. What it seemed to find it had not computed.
void Scheduler::BeginAgain(Request* request, TimeNs now) {
  CountResume(*request, -1);
  pages_.UndoAdmission(request);
  Preempt(request, now, /*begins_again=*/true);
  request->fetches = Request::kMostFetches;
}

// ---------------------------------------------------------------- Commit

void Scheduler::Commit(const StepPlan& plan, TimeNs now) {
  if (plan.outlook.has_value()) {
    outlook_ = *plan.outlook;
    queues_.set_by_rank(plan.by_rank);
  }
  prompt_tokens_ = plan.prefill_tokens;
  discardable_ -= static_cast<double>(plan.discarded_tokens);
  for (Request* request : plan.preemptions) Preempt(request, now);
  Leave(plan.moves, now);
  Load(plan.moves, /*begins=*/true, now);
  for (const PlannedAdmission& admission : plan.admissions) Begin(admission, now);
  // Before pages become part of the tree (a snapshot): what is fetched is not on the device yet.
  Fetch(plan.moves, now);
  for (const PlannedChunk& chunk : plan.chunks) pages_.Allocate(chunk, now);
  MakeHostRoom(plan.moves, now);
  Load(plan.moves, /*begins=*/false, now);
  worth_.StepBegan(plan, now);
  rules_.Committed(plan, residency_);
  stats_.cold_starts += std::ssize(plan.stalls);
  stats_.exhausted += std::ssize(plan.exhausted);
}

void Scheduler::CommitMoves(const MovePlan& plan, TimeNs now) {
  Leave(plan.moves, now);
  MakeHostRoom(plan.moves, now);
  Load(plan.moves, /*begins=*/false, now);
  tiers_.FetchAhead(plan.moves);
  if (plan.reason == MoveReason::kBackUp) tiers_.BackUp(plan.moves);
  if (plan.reason == MoveReason::kRegistered) ReadIntoHost(plan.moves, now);
  if (plan.reason == MoveReason::kNewcomer) outlook_.newest_seen = plan.newest_seen;
  if (plan.reason == MoveReason::kExpected && plan.empty()) expected_.PutOff(now);
  for (const Move& move : plan.moves) CountMove(move);
}

void Scheduler::CountMove(const Move& move) {
  const bool adapter = move.item.is_adapter();
  switch (move.why) {
    case MoveReason::kNewcomer:
      stats_.loads_on_arrival += move.is_load();
      return;
    case MoveReason::kExpected:
      if (move.is_load()) expected_.LoadBegan(move.item.adapter);
      return;
    case MoveReason::kSwapOut:
      (adapter ? stats_.swaps.adapters_out : stats_.swaps.history_out) += move.pages;
      return;
    case MoveReason::kSwapIn:
      (adapter ? stats_.swaps.adapters_in : stats_.swaps.history_in) += move.pages;
      return;
    default:
      return;
  }
}

void Scheduler::Leave(const Moves& moves, TimeNs now) {
  for (std::size_t i = 0; i < moves.size(); ++i) {
    PrefetchEvictions(tree_, moves, i);
    const Move& move = moves[i];
    if (move.to != Tier::kDisk) continue;
    const AdapterGeneration adapter = move.item.adapter;
    if (!move.item.is_adapter() && move.from == Tier::kHost) {
      tree_.Drop(move.item.node);
    } else if (!move.item.is_adapter()) {
      if (has_clock_) worth_.Evicts(planner_->history().Score(move.item.node, now), now);
      tree_.Evict(move.item.node);
      stats_.history_evictions += move.pages;
    } else {
      if (has_clock_ && move.from == Tier::kDevice) worth_.Evicts(worth_.ScoreOf(residency_.Get(adapter), now), now);
      residency_.Evict(adapter, move.from);
      if (move.from == Tier::kHost) continue;
      stats_.evicted_adapter_pages += move.pages;
      expected_.Evicted(adapter);
    }
  }
}

void Scheduler::Fetch(const Moves& moves, TimeNs now) {
  for (const Move& move : moves) {
    if (move.is_fetch()) pages_.Fetch(move, *queues_.FindWaiting(move.requester), now);
  }
}

// Adapters that move to the host tier displace keys and values there.
void Scheduler::MakeHostRoom(const Moves& moves, TimeNs now) {
  std::int64_t pages = 0;
  for (const Move& move : moves) pages += move.item.is_adapter() && move.to == Tier::kHost ? move.pages : 0;
  const std::int64_t missing = pages == 0 ? 0 : pages - residency_.pool(Tier::kHost).free_pages();
  if (missing > 0) DropFromHost(missing, now);
}

void Scheduler::DropFromHost(std::int64_t pages, TimeNs now) {
  const MovePlan& plan = background_.DropHistory(pages);
  on_moves_(plan);
  Leave(plan.moves, now);
}

void Scheduler::ReadIntoHost(const Moves& moves, TimeNs now) {
  for (const Move& move : moves) {
    if (move.to == Tier::kHost) residency_.BeginHostRead(move.item.adapter, now);
  }
}

// A move to the host tier is part of the load that follows it.
void Scheduler::Load(const Moves& moves, bool begins, TimeNs now) {
  for (const Move& move : moves) {
    if (!move.is_load() || (move.why == MoveReason::kBegins) != begins) continue;
    const bool ahead = move.why == MoveReason::kSwapIn;
    residency_.BeginLoad(move.item.adapter, /*via_host=*/move.from == Tier::kHost, now, ahead);
  }
}

// ---------------------------------------------------------------- Beside the steps

bool Scheduler::MoveFor(MoveReason reason, TimeNs now) {
  const MovePlan* plan = background_.Plan(reason, now);
  if (plan == nullptr) return false;
  if (!plan->empty()) on_moves_(*plan);
  CommitMoves(*plan, now);
  return !plan->empty();
}

std::int64_t Scheduler::DropHistory(TimeNs now) {
  const auto pages = [this] { return tree_.tiers().pages() + tree_.tiers().host_pages(); };
  const std::int64_t before = pages();
  MoveFor(MoveReason::kReset, now);
  if (const std::int64_t copies = tree_.tiers().droppable_host_pages(); copies > 0) DropFromHost(copies, now);
  return before - pages();
}

bool Scheduler::LoadForNewcomer(TimeNs now) { return MoveFor(MoveReason::kNewcomer, now); }

bool Scheduler::Prepare(TimeNs now, bool ending) {
  stats_.given_up += queues_.Refit(worth_.reload_costs(), now);
  RefreshWorth(now);
  if (learns_reuse_) tree_.ObserveIdlePages(now, worth_.context().remembered_s);
  planner_->history().Refresh(now);
  expected_.Refresh(now);
  MoveFor(MoveReason::kExpected, now);
  MoveFor(MoveReason::kReserve, now);
  if (!ending) MoveFor(MoveReason::kRegistered, now);
  MoveFor(MoveReason::kBackUp, now);
  if (const auto reason = background_.ObserveMemory(now, ending)) MoveFor(*reason, now);
  return background_.swaps_on();
}

std::optional<TimeNs> Scheduler::NextMove() const {
  const std::optional<TimeNs> swap = background_.NextSwap(), load = expected_.NextDue();
  if (!swap.has_value() || !load.has_value()) return swap.has_value() ? swap : load;
  return std::min(*swap, *load);
}

void Scheduler::RefreshWorth(TimeNs now) {
  if (!worth_.IsStale(now)) return;
  worth_.Refresh({.idle_pages = history_pages() + residency_.idle_pages(),
                  .evicted_pages = stats_.history_evictions + stats_.evicted_adapter_pages,
                  .requests = static_cast<std::int64_t>(running().size() + waiting().size()),
                  .oldest_history = planner_->history().oldest_use().value_or(now)},
                 now);
  planner_->history().set_context(worth_.context());
}

// ---------------------------------------------------------------- What others see

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = stats_;
  stats.prefix = pages_.prefix_stats();
  stats.prefix.snapshot_interval = tree_.state_pages() > 0 ? pages_.snapshot_interval().tokens() : 0;
  stats.prefetches = expected_.stats();
  stats.predictions = queues_.predictions();
  stats.lanes_least_share = queues_.order().LeastShare();
  return stats;
}

std::int64_t Scheduler::CountInvalidHistory() { return options_.maintain_dependency ? 0 : pages_.UnusablePages(); }

void Scheduler::CheckIntegrity() const {
  queues_.CheckIntegrity();
  pages_.CheckIntegrity(running(), waiting());
  pages_.branches().CheckIntegrity(options_.maintain_dependency);
}

}  // namespace loramux
