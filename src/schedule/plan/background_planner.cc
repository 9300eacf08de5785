#include "schedule/plan/background_planner.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace loramux {
namespace {

constexpr std::int64_t kMostOut = 64;  // evictions in one swap
// FastLibra's lower threshold: with more than 70 % of the device in use, it counts as filling up.
constexpr double kFreeEnough = 0.3;
// Leaves to consider for a copy. The next victims must already have copies; later ones may still be used.
constexpr std::size_t kLeavesAhead = 128;
constexpr std::size_t kAllLeaves = std::numeric_limits<std::size_t>::max();

}  // namespace

const MovePlan* BackgroundPlanner::Plan(MoveReason reason, TimeNs now) {
  const auto decides = [&] {
    switch (reason) {
      case MoveReason::kNewcomer:
        return ForNewcomer(now);
      case MoveReason::kExpected:
        return ForExpected(now);
      case MoveReason::kReserve:
        return ForReserve(now);
      case MoveReason::kBackUp:
        return BackUp();
      case MoveReason::kSwapOut:
        return SwapOut(now);
      case MoveReason::kSwapIn:
        return SwapIn(now);
      case MoveReason::kReset:
        return Reset(now);
      case MoveReason::kRegistered:
        return ForRegistered();
      default:  // reasons of steps
        break;
    }
    return false;
  };
  return decides() ? &plan_ : nullptr;
}

void BackgroundPlanner::Begin(MoveReason reason, TimeNs now) {
  plan_.Clear();
  plan_.reason = reason;
  room_.Reset(now, plan_.moves, reason, reason);
}

void BackgroundPlanner::WantAdaptersOfWaiting() {
  for (const Request* request : view_.queues.waiting()) {
    if (request->adapter != kBaseModel) room_.Want(request->adapter);
  }
}

// ---------------------------------------------------------------- Adapters of new requests

// Considers the requests that arrived since the last plan, and takes the first with an adapter that fits beside the
// needs of the running requests and of the waiting requests up to it. If a load is under way or waits for its turn, the
// next plan decides the order. In a queue longer than lookahead, new requests do not start with the next step anyway.
// One call considers all new requests, because later calls may happen in steps without any effect, which recordings do
// not contain.
bool BackgroundPlanner::ForNewcomer(TimeNs now) {
  const std::optional<RequestId> newest = view_.queues.newest(), seen = outlook_.newest_seen;
  if (!view_.options.load_on_arrival || rules_.LoadsOnlyInSteps() || newest == seen) return false;
  if (outlook_.waits_for_room || outlook_.loads_wait || view_.residency.Stats().loading > 0) return false;
  const std::span<Request* const> queue = view_.queues.waiting();
  if (queue.size() > static_cast<std::size_t>(view_.options.lookahead)) return false;
  auto newcomer = std::partition_point(
      queue.begin(), queue.end(), [seen](const Request* request) { return seen.has_value() && request->id <= *seen; });
  plan_.Clear();
  plan_.reason = MoveReason::kNewcomer;
  plan_.newest_seen = newest;
  const auto must_load = [this](const Request* request) { return view_.MustLoad(*request); };
  if (std::none_of(newcomer, queue.end(), must_load)) return true;
  room_.Reset(now, plan_.moves, plan_.reason, plan_.reason);
  WantAdaptersOfWaiting();
  for (; newcomer != queue.end(); ++newcomer) {
    const auto up_to = static_cast<std::size_t>(newcomer - queue.begin()) + 1;
    if (!view_.MustLoad(**newcomer) || !PlanLoadFor(queue.first(up_to))) continue;
    plan_.newest_seen = (*newcomer)->id;
    break;
  }
  return true;
}

bool BackgroundPlanner::PlanLoadFor(std::span<Request* const> waiting) {
  const Request& request = *waiting.back();
  const AdapterResidency& adapter = view_.residency.Get(request.adapter);
  const std::int64_t pages = adapter.pages, needs = NextPlanNeeds(waiting);
  const std::int64_t room =
      room_.free(PageCategory::kAdapter) + room_.evictable(PageCategory::kAdapter, /*even_wanted=*/false);
  if (room_.ExceedsDistinct(request) || room < pages + needs) return false;
  const std::int64_t reserve = view_.partitioned() ? 0 : view_.GrowthReserve();
  if (!room_.MakeRoom(PageCategory::kAdapter, pages + reserve)) return false;
  room_.Load(adapter);
  return true;
}

// An upper bound. If adapters have a share, requests need no pages of it.
std::int64_t BackgroundPlanner::NextPlanNeeds(std::span<Request* const> waiting) const {
  if (view_.partitioned()) return 0;
  std::int64_t pages = view_.GrowthReserve();
  for (const std::span<Request* const> requests : {view_.queues.running(), waiting}) {
    for (const Request* request : requests)
      pages += view_.MissingPages(*request, static_cast<std::int64_t>(request->tokens.size()) + 1);
  }
  return pages;
}

// ---------------------------------------------------------------- Expected adapters

// One load, if no other is under way and no request waits for memory: loads for requests come first.
bool BackgroundPlanner::ForExpected(TimeNs now) {
  const std::optional<AdapterGeneration> expected = view_.expected.Due(now);
  if (!expected.has_value()) return false;
  Begin(MoveReason::kExpected, now);
  if (outlook_.waits_for_room || !PlanExpectedLoad(view_.residency.Get(*expected), now)) plan_.Clear();
  return true;
}

// Uses pages that are free beyond the reserve, and pages whose content scores less than the adapter would if it were
// used now. Never evicts anything that a waiting request wants.
bool BackgroundPlanner::PlanExpectedLoad(const AdapterResidency& adapter, TimeNs now) {
  WantAdaptersOfWaiting();
  const double worth = view_.worth.ScoreIfUsed(adapter, now);
  const bool partitioned = view_.partitioned();
  const std::int64_t reserve = partitioned ? 0 : std::max(view_.GrowthReserve(), view_.NewcomersReserve());
  while (room_.free(PageCategory::kAdapter) < adapter.pages + reserve) {
    const std::optional<double> idle_adapter = room_.LeastIdleAdapter();
    std::optional<KvEvictionPlan::Victim> history;
    if (!partitioned) history = room_.history().Next(room_.now());
    if (history.has_value() && history->wanted) history.reset();
    double least = idle_adapter.value_or(std::numeric_limits<double>::infinity());
    if (history.has_value()) least = std::min(least, history->score);
    if (!(least < worth)) return false;
    if (!room_.EvictOne(PageCategory::kAdapter, /*even_wanted=*/false)) return false;
  }
  room_.Load(adapter);
  return true;
}

// ---------------------------------------------------------------- The reserve

// Evicts history that is next anyway, so that a plan finds free pages for new requests and for the pages that those
// must leave free. Stops where an adapter would be evicted first; a step's plan decides about that.
bool BackgroundPlanner::ForReserve(TimeNs now) {
  const std::int64_t reserve = view_.NewcomersReserve();
  if (view_.tree.tiers().idle_pages() == 0) return false;
  if (view_.options.swap_out == SwapOut::kEvicted) return false;  // its thresholds and its requests decide alone
  if (!view_.partitioned() && view_.device.free_pages() >= reserve) return false;
  Begin(MoveReason::kReserve, now);
  while (room_.free_kv() < reserve) {
    const std::optional<KvEvictionPlan::Victim> history = room_.history().Next(room_.now());
    if (!history.has_value() || history->wanted) break;
    const std::optional<double> adapter = view_.partitioned() ? std::nullopt : room_.LeastIdleAdapter();
    if (adapter.has_value() && *adapter < history->score) break;
    room_.EvictHistory(*history);
  }
  return true;
}

// ---------------------------------------------------------------- The host tier

// The idle pages that go next are copied. If the device is filling up and idle pages are few, the pages of running
// requests come next, and after they become idle there would be no time to copy them: then their paths are copied too.
// The scores are those of the last plan.
bool BackgroundPlanner::BackUp() {
  copies_ended_ = false;
  const bool evicted = view_.options.swap_out == SwapOut::kEvicted;
  const std::int64_t wanted = PagesToBackUp();
  if (wanted == 0) room_.SetCopiesMade(true);  // the next page that has to leave is tried again
  if (wanted == 0 || view_.tiers.backing_up()) return false;
  plan_.Clear();
  plan_.reason = MoveReason::kBackUp;
  room_.host().Reset(plan_.moves, plan_.reason, plan_.reason);
  const DependencyTree& tree = view_.tree;
  soon_.clear();
  room_.history().AppendNext(evicted ? kAllLeaves : kLeavesAhead, soon_);
  std::erase_if(soon_, [&](NodeId leaf) {
    return !tree.nodes().Exists(leaf) || tree.View(leaf).users > 0 || room_.history().IsUseless(leaf);
  });
  if (!evicted && static_cast<double>(view_.device.free_pages() + tree.tiers().idle_pages()) < EnoughFree()) {
    for (const Request* request : view_.queues.running()) soon_.push_back(request->tail);
  }
  std::int64_t left = wanted;
  for (auto tail = soon_.begin(); tail != soon_.end() && left > 0; ++tail) left -= room_.host().BackUp(*tail, left);
  if (!evicted) return true;
  // If all idle pages have copies, nothing was refused: what becomes idle later can be copied then.
  const bool refused = left == wanted && std::any_of(soon_.begin(), soon_.end(), [&tree](NodeId leaf) {
                         return !tree.nodes().At(leaf).has_host_page();
                       });
  copies_ended_ = refused && room_.copies_made();
  room_.SetCopiesMade(!refused);
  return true;
}

double BackgroundPlanner::EnoughFree() const {
  return kFreeEnough * static_cast<double>(view_.device.capacity_pages());
}

std::int64_t BackgroundPlanner::PagesToBackUp() const {
  const std::int64_t most = view_.tiers.max_pages_of_job();
  if (view_.options.swap_out == SwapOut::kAhead)
    return static_cast<double>(view_.device.free_pages()) > EnoughFree() ? 0 : most;
  if (outlook_.waits_for_room) return most;
  const bool swaps = view_.options.proactive_swapping && !view_.partitioned();
  return swaps ? std::min(most, swapper_.PagesAbove(UsedPages(), view_.device.capacity_pages())) : 0;
}

const MovePlan& BackgroundPlanner::DropHistory(std::int64_t pages) {
  host_plan_.Clear();
  host_plan_.reason = MoveReason::kRoom;
  room_.host().Reset(host_plan_.moves, host_plan_.reason, host_plan_.reason);
  room_.host().Drop(pages);
  return host_plan_;
}

// One read at a time, of the first adapter that fits: a load of another one that a request waits for is behind one read
// at most. Copies of other adapters never give way; what has no room is read once there is some, or loaded as ever.
bool BackgroundPlanner::ForRegistered() {
  const ResidencyManager& residency = view_.residency;
  const auto wanted = residency.WantedInHost();
  if (wanted.empty() || residency.reading_ahead()) return false;
  std::int64_t room = residency.pool(Tier::kHost).free_pages();
  if (view_.options.host_copies == HostCopies::kAlways) room += view_.tree.tiers().droppable_host_pages();
  const auto next = std::ranges::find_if(wanted, [&](AdapterGeneration generation) {
    const AdapterResidency& adapter = residency.Get(generation);
    const bool nowhere = adapter.device == TierState::kAbsent && adapter.host == TierState::kAbsent;
    return nowhere && !adapter.retired && adapter.pages <= room;
  });
  if (next == wanted.end()) return false;
  plan_.Clear();
  plan_.reason = MoveReason::kRegistered;
  room_.host().Reset(plan_.moves, plan_.reason, plan_.reason);
  if (!room_.host().Load(residency.Get(*next))) plan_.Clear();
  return true;
}

// All history leaves the device, also what waiting requests want, and what has no copy: none is made of it.
bool BackgroundPlanner::Reset(TimeNs now) {
  Begin(MoveReason::kReset, now);
  room_.history().SpareUncopied(false);
  while (const auto history = room_.history().Next(now)) room_.EvictHistory(*history);
  return true;
}

// ---------------------------------------------------------------- Proactive swapping

std::optional<MoveReason> BackgroundPlanner::ObserveMemory(TimeNs now, bool ending) {
  swaps_on_ = false;
  if (!view_.options.proactive_swapping || view_.partitioned()) return std::nullopt;
  switch (swapper_.Observe(UsedPages(), view_.device.capacity_pages(), now)) {
    case ProactiveSwapper::Memory::kBalanced:
      return std::nullopt;
    case ProactiveSwapper::Memory::kBusy:
      return MoveReason::kSwapOut;
    case ProactiveSwapper::Memory::kIdle:
      break;
  }
  // Uses only free memory, and only while no request waits for room. Begins once per interval, and then whenever what
  // it moved has arrived: "continuously ... one by one ... until the HBM is at a balanced status" (FastLibra 5.3).
  const bool arrived = !view_.tiers.fetching_ahead() && LoadsToSwapIn() > 0 && Failures() == failures_;
  const bool goes_on = swapped_in_some_ && arrived;
  if (!swapper_.walking() && swapped_in_at_ == swapper_.observed_at() && !goes_on) return std::nullopt;
  return outlook_.waits_for_room || ending ? std::nullopt : std::optional(MoveReason::kSwapIn);
}

std::optional<TimeNs> BackgroundPlanner::NextSwap() const {
  const bool may = view_.options.proactive_swapping && !view_.partitioned() &&
                   swapper_.MayMove(UsedPages(), view_.device.capacity_pages());
  return may ? std::optional(swapper_.observed_at() + swapper_.interval()) : std::nullopt;
}

bool BackgroundPlanner::SwapOut(TimeNs now) {
  Begin(MoveReason::kSwapOut, now);
  for (const AdapterGeneration generation : view_.residency.Residents(Tier::kDevice)) {
    const AdapterResidency& adapter = view_.residency.Get(generation);
    if (adapter.references > adapter.users) room_.Want(generation);
  }
  const std::int64_t enough = room_.free_kv() + swapper_.PagesAbove(UsedPages(), view_.device.capacity_pages());
  for (std::int64_t i = 0; i < kMostOut && room_.free_kv() < enough && SwapOutOne(); ++i) {
  }
  swaps_on_ = !plan_.empty();
  return true;
}

// What no waiting request wants. A page without a copy in the host tier stays as long as copies are being made, or with
// SwapOut::kEvicted can be made (BackUp begins with those that are evicted next). If none are being made, the host tier
// has no room for it. Adapters need no copy, because they are on disk.
bool BackgroundPlanner::SwapOutOne() {
  std::optional<KvEvictionPlan::Victim> history = room_.history().Next(room_.now());
  if (history.has_value() && history->wanted) history.reset();
  const std::optional<double> adapter = room_.LeastIdleAdapter();
  if (adapter.has_value() && (!history.has_value() || *adapter < history->score)) {
    room_.EvictIdleAdapter();
    return true;
  }
  if (!history.has_value()) return false;
  if (view_.tiers.backing_up() && !view_.tree.nodes().At(history->node).has_host_copy()) return false;
  room_.EvictHistory(*history);
  return true;
}

// The walk over the host tier takes several calls.
bool BackgroundPlanner::SwapIn(TimeNs now) {
  const AdapterBranches& branches = view_.pages.branches();
  const bool depends = view_.options.maintain_dependency;
  if (!swapper_.walking()) {
    swapped_in_at_ = swapper_.observed_at();
    branches.MarkUsable(depends, usable_branches_);
    swapper_.BeginWalk(usable_branches_);
  }
  swaps_on_ = !swapper_.Walk(room_.history(), now);
  if (swaps_on_) return false;
  OfferAdapters(now);
  branches.MarkUsable(depends, usable_branches_);  // steps may have run since the walk began
  const Moves& moves = swapper_.Choose(RoomToSwapIn(), usable_branches_, room_.history(), now);
  plan_.Clear();
  plan_.reason = MoveReason::kSwapIn;
  plan_.moves.insert(plan_.moves.end(), moves.begin(), moves.end());
  swapped_in_some_ = !moves.empty();
  failures_ = Failures();
  return true;
}

// Half of the loads in flight are left to requests that arrive meanwhile.
std::int64_t BackgroundPlanner::LoadsToSwapIn() const {
  const std::int64_t most = std::max<std::int64_t>(1, view_.options.max_loads_in_flight / 2);
  return std::max<std::int64_t>(0, most - view_.residency.Stats().loading);
}

ProactiveSwapper::Room BackgroundPlanner::RoomToSwapIn() const {
  const std::int64_t used = UsedPages(), capacity = view_.device.capacity_pages();
  return {.pages = swapper_.PagesBelow(used, capacity),
          .most = std::min(swapper_.UpperPages(capacity) - used, view_.device.free_pages() - view_.GrowthReserve()),
          .kv_pages = view_.tiers.fetching_ahead() ? 0 : view_.tiers.max_pages_of_job(),
          .adapters = LoadsToSwapIn()};
}

// An adapter may always be swapped in: its parent is the virtual root, which is always on the device.
void BackgroundPlanner::OfferAdapters(TimeNs now) {
  for (const AdapterGeneration generation : view_.residency.Residents(Tier::kHost)) {
    const AdapterResidency& adapter = view_.residency.Get(generation);
    if (adapter.device != TierState::kAbsent || adapter.retired || adapter.kept) continue;
    swapper_.Offer({.score = view_.worth.ScoreOf(adapter, now), .adapter = generation, .pages = adapter.pages});
  }
}

}  // namespace loramux
