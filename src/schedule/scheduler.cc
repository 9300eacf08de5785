// The queues, and how a plan is applied. Plans are made in scheduler_plan.cc and scheduler_memory.cc.
#include "schedule/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "schedule/service_times.h"

namespace loramux {
namespace {

// The default burst is the tokens of two steps, so that a few requests that arrive together need not wait for the
// shares of other tenants.
FairnessOptions WithBurst(const SchedulerOptions& options) {
  FairnessOptions fairness = options.fairness;
  if (fairness.burst == 0) fairness.burst = static_cast<double>(2 * options.max_batch_tokens);
  return fairness;
}

// If each side evicts only its own pages, no adapter can stay until its history is gone.
SchedulerOptions Consistent(SchedulerOptions options) {
  options.maintain_dependency = options.maintain_dependency && options.adapter_share <= 0;
  return options;
}

bool OlderThan(const Request* a, const Request* b) { return a->id < b->id; }

TimeNs WaitForAdapter(const Request& request, const AdapterResidency& adapter, TimeNs now) {
  const TimeNs there = adapter.device == TierState::kResident ? adapter.resident_since : now;
  return std::max<TimeNs>(0, there - request.arrival);
}

// A host tier no larger than the device holds recently evicted pages, and recency predicts best which of them come
// back. For pages that stay long, visits predict better. So the bonus grows with the part of the host tier that
// exceeds the size of the device.
TimeNs HostBonus(TimeNs full, std::int64_t device_pages, const PagePool* host) {
  if (host == nullptr || host->capacity_pages() <= device_pages) return 0;
  return static_cast<TimeNs>(static_cast<double>(full) *
                             (1 - static_cast<double>(device_pages) / static_cast<double>(host->capacity_pages())));
}

}  // namespace

Scheduler::Scheduler(SchedulerOptions options, PagePool* device, ResidencyManager* residency,
                     const EvictionPolicy* policy, DependencyTree* tree, KvTiers* tiers, QueueOrder* queue,
                     LengthPredictor* predictor)
    : options_(Consistent(std::move(options))),
      device_(device),
      residency_(residency),
      policy_(policy),
      tree_(tree),
      tiers_(tiers),
      kv_plan_(tree, policy),
      adapter_pages_(AdapterSharePages(options_.adapter_share, device->capacity_pages())),
      swapper_(tree),
      tenants_(WithBurst(options_), kMaxLanes),
      own_queue_(queue == nullptr ? *MakeQueueOrder({}) : nullptr),
      queue_(queue == nullptr ? own_queue_.get() : queue),
      predictor_(predictor) {
  CHECK_GT(options_.page_tokens, 0);
  CHECK_GT(options_.max_batch_tokens, 0);
  const auto most = static_cast<std::size_t>(2 * Seats());  // more requests may run than compute in a step
  running_.reserve(most);
  running_tails_.reserve(most);
  by_rank_.reserve(most);
  scratch_.runners.reserve(most);
  scratch_.merge_buffer.reserve(most);
  discardable_ = options_.discard_share > 0 ? static_cast<double>(options_.max_batch_tokens) : 0;
  residency_->set_on_load([this](const AdapterResidency& adapter, TimeNs took) {
    reload_costs_.SawLoad(adapter.from_disk ? ReloadFrom::kDisk : ReloadFrom::kHost, adapter.version->layout.pages,
                          took);
  });
  if (options_.costs != nullptr) {
    ExpectReloads(*options_.costs, device_->page_bytes(), options_.page_tokens, reload_costs_);
    constexpr double kLongest = 60;  // seconds; bounds the values of a profile
    step_floor_.Add(static_cast<TimeNs>(std::min(kLongest, ShortestStepSeconds(*options_.costs)) * kNsPerSecond));
  }
  if (tree_ == nullptr) return;
  CHECK_EQ(tree_->page_tokens(), options_.page_tokens);
  tree_->set_host_bonus(HostBonus(options_.host_bonus, device_->capacity_pages(), residency_->host()));
  base_branch_ = tree_->Hold("");
  residency_->set_on_drop([this](const AdapterResidency& adapter) { ForgetBranch(adapter); });
}

Scheduler::~Scheduler() {
  residency_->set_on_load(nullptr);
  if (tree_ != nullptr) residency_->set_on_drop(nullptr);
}

void Scheduler::Commit(TimeNs now) {
  discardable_ -= static_cast<double>(plan_.discarded_tokens);
  for (Request* request : plan_.preemptions) Preempt(request, now);
  CommitEvictions();
  for (const PlannedAdmission& admission : plan_.admissions) {
    Request* request = admission.request;
    EraseWaiting(request);
    queue_->EndsWait(request, /*let_in=*/true, now);
    request->overtook = admission.overtakes;
    InsertRunning(request);
    tenants_.Admit(request, now);
    request->state = RequestState::kRunning;
    // If the request is preempted and waits again, it is placed as if it had not been given up.
    if (std::exchange(request->late, false)) PlaceInQueue(*queue_, options_.age_bound, *request);
    if (request->first_scheduled < 0) {
      request->first_scheduled = now;
      if (request->adapter != kBaseModel)
        adapter_wait_total_ += WaitForAdapter(*request, residency_->Get(request->adapter), now);
    }
    bool early = request->adapter != kBaseModel && residency_->Get(request->adapter).arriving();
    if (request->adapter != kBaseModel) Pin(request->adapter, now);
    if (tiers_ != nullptr && !tree_->OnDevice(admission.tail)) {
      tiers_->Use(admission.tail);
      early = true;
    }
    early_admissions_ += early;
    if (tree_ != nullptr) BeginFrom(admission, now);
  }
  for (const PlannedChunk& chunk : plan_.chunks) {
    Request* request = chunk.request;
    if (chunk.new_pages == 0) continue;
    const std::size_t old_size = request->pages.size();
    request->pages.resize(old_size + static_cast<std::size_t>(chunk.new_pages));
    const std::span<PageHandle> added = std::span(request->pages).subspan(old_size);
    CHECK(device_->Allocate(PageCategory::kKv, added));
    for (const PageHandle page : added) request->page_table.push_back(page.index);
  }
  for (const PlannedFetch& fetch : plan_.fetches) {
    Request& request = *fetch.request;
    if (fetch.ahead)
      request.fetched_ahead = true;
    else
      ++request.fetches;
    request.fetched_tokens += static_cast<std::int32_t>(fetch.pages * options_.page_tokens);
    tree_->Unwant(request.tail);  // want the end of the fetched path, so that it is evicted last
    request.tail = fetch.tail;
    tree_->Want(request.tail);
    tiers_->Fetch(fetch.tail, request.id, now, fetch.ahead);
  }
  StartLoads(now);
  NotePhase();
  cold_starts_ += static_cast<std::int64_t>(plan_.stalls.size());
  if (!Stalled()) stalls_.assign(plan_.stalls.begin(), plan_.stalls.end());
  stalled_since_step_ = plan_.chunks.empty() && (stalled_since_step_ || !stalls_.empty());
}

// Adapters that move to the host tier displace keys and values there.
void Scheduler::StartLoads(TimeNs now) {
  std::int64_t host_pages = 0;
  for (const PlannedLoad& load : plan_.loads) {
    const AdapterResidency& adapter = residency_->Get(load.adapter);
    if (load.via_host && adapter.host != TierState::kResident) host_pages += adapter.version->layout.pages;
  }
  if (host_pages > 0 && tiers_ != nullptr) {
    tree_->DropHostPages(std::max<std::int64_t>(0, host_pages - residency_->host()->free_pages()));
  }
  for (const PlannedLoad& load : plan_.loads) residency_->BeginLoad(load.adapter, load.via_host, now);
  RecordUse(now);
}

void Scheduler::CommitHistoryEvictions() {
  for (std::size_t i = 0; i < plan_.kv_evictions.size(); ++i) {
    tree_->PrefetchEvict(plan_.kv_evictions, i);
    tree_->Evict(plan_.kv_evictions[i]);
  }
  history_evictions_ += static_cast<std::int64_t>(plan_.kv_evictions.size());
}

void Scheduler::CommitEvictions() {
  CommitHistoryEvictions();
  for (const AdapterGeneration generation : plan_.device_evictions) {
    evicted_adapter_pages_ += residency_->Get(generation).version->layout.pages;
    residency_->EvictFromDevice(generation);
    prefetch_stats_.wasted += EndPrefetch(generation);
  }
  for (const AdapterGeneration generation : plan_.host_evictions) residency_->EvictFromHost(generation);
}

void Scheduler::Advance(Request* request, std::int64_t num_tokens, TimeNs now) {
  EndCopy(request, now);
  MeasureStep(now);
  request->computed += num_tokens;
  CHECK_LE(request->computed, static_cast<std::int64_t>(request->tokens.size()));
  tenants_.Charge(request, now);
  if (tree_ != nullptr) InsertFilledPages(request, now);
  const auto most = static_cast<double>(8 * options_.max_batch_tokens);
  discardable_ = std::min(most, discardable_ + options_.discard_share * static_cast<double>(num_tokens));
}

void Scheduler::Add(Request* request) {
  CHECK(waiting().empty() || OlderThan(waiting().back(), request));
  CHECK(running_.empty() || OlderThan(running_.back(), request));
  request->state = RequestState::kWaiting;
  waiting_.push_back(request);
  newest_ = request->id;
  if (tree_ != nullptr) {
    KnowBranch(request);
    request->top = tree_->HoldTop(request->branch, request->prefix_domain);
    request->tail = FindTail(*request);
    tree_->Want(request->tail);
  }
  EnterQueue(request);
  tenants_.Add(request, request->arrival);
  EndIdle(*request);
}

void Scheduler::Remove(Request* request, TimeNs now, bool by_itself) {
  if (by_itself && !request->generated().empty()) ObserveEnd(*request, now);
  tenants_.Remove(request);
  if (request->state == RequestState::kRunning) {
    if (BeganOnFailedFetch(*request)) tiers_->StopUse(request->tail);
    EraseRunning(request);
    ReleaseMemory(request, now);
  } else {
    CHECK(request->state == RequestState::kWaiting);
    EraseWaiting(request);
    queue_->EndsWait(request, /*let_in=*/false, now);
    if (tree_ != nullptr) tree_->Unwant(request->tail);
    if (tiers_ != nullptr) CancelFetchFor(*request);
  }
  if (tree_ != nullptr) tree_->ReleaseTop(request->top);
  request->state = RequestState::kFinished;
  BeginIdle(*request, now);
}

// The request has left, but other requests with its adapter may wait for the same history; then the fetch goes on.
void Scheduler::CancelFetchFor(const Request& request) {
  if (!tiers_->IsRequester(request.id)) return;
  const auto queue = waiting();
  const bool shared =
      std::any_of(queue.begin(), queue.end(), [&](const Request* other) { return other->top == request.top; });
  if (!shared) tiers_->Cancel(request.id);
}

bool Scheduler::BeganOnFailedFetch(const Request& request) const {
  if (tiers_ == nullptr || tree_->OnDevice(request.tail)) return false;
  const KvTiers::Fetching* fetch = tiers_->FetchOf(request.tail);
  CHECK(fetch != nullptr);
  return fetch->failed;
}

// Undoes the admission in the statistics, because what the request seemed to find is missing. It does not fetch
// again.
void Scheduler::BeginAgain(Request* request, TimeNs now) {
  if (request->preemptions == 0) {
    CountPrefix(*request, -1);
    request->cached_tokens = -1;
    request->fetched_tokens = 0;
    request->charged = 0;
  }
  tiers_->StopUse(request->tail);
  Preempt(request, now);
  request->fetches = Request::kMostFetches;
}

// ---------------------------------------------------------------- The dependency tree

// An adapter without a digest (in the simulator) shares its content with no other adapter.
void Scheduler::KnowBranch(Request* request) {
  request->branch = base_branch_;
  if (request->adapter == kBaseModel) return;
  const std::size_t slot = residency_->SlotOf(request->adapter);
  if (branch_of_slot_.size() <= slot) branch_of_slot_.resize(slot + 1);
  if (!branch_of_slot_[slot].has_value()) {
    const std::string& digest = residency_->Get(request->adapter).version->file.digest;
    const BranchId branch =
        tree_->Hold(digest.empty() ? "generation " + std::to_string(request->adapter.value) : digest);
    branch_of_slot_[slot] = branch;
    if (slots_of_branch_.size() <= branch.value) slots_of_branch_.resize(branch.value + std::size_t{1});
    slots_of_branch_[branch.value].push_back(static_cast<std::uint32_t>(slot));
  }
  request->branch = *branch_of_slot_[slot];
}

// Called when the adapter is dropped, so no reference to it is left. Its history is unusable unless the device has
// another adapter of the same content.
void Scheduler::ForgetBranch(const AdapterResidency& adapter) {
  if (!HasBranch(adapter.slot)) return;
  const BranchId branch = *branch_of_slot_[adapter.slot];
  branch_of_slot_[adapter.slot].reset();
  std::vector<std::uint32_t>& slots = slots_of_branch_[branch.value];
  slots.erase(std::find(slots.begin(), slots.end(), adapter.slot));
  const bool usable = std::any_of(slots.begin(), slots.end(), [&](std::uint32_t slot) {
    return residency_->All()[slot].device == TierState::kResident;
  });
  if (!usable && options_.maintain_dependency) tree_->Clear(branch);
  tree_->Release(branch);
}

void Scheduler::BeginFrom(const PlannedAdmission& admission, TimeNs now) {
  Request* request = admission.request;
  const NodeId tail = admission.tail;
  const bool copies = admission.in_page.tokens > 0;
  tree_->Unwant(request->tail);
  tree_->Lock(copies ? admission.in_page.node : tail, now);
  if (copies) request->copied_from = admission.in_page.node;
  prefix_stats_.copied_pages += copies;
  request->fetches = 0;
  request->fetched_ahead = false;
  request->tail = tail;
  const std::int64_t depth = tree_->Depth(tail);
  request->tree_pages = static_cast<std::int32_t>(depth);
  request->pages.resize(static_cast<std::size_t>(depth));
  tree_->CopyPath(tail, request->pages);
  request->page_table.clear();
  for (const PageHandle page : request->pages) request->page_table.push_back(page.index);
  request->computed = depth * options_.page_tokens + admission.in_page.tokens;
  request->charged = std::max(request->charged, request->computed);  // cached tokens are not charged
  if (request->cached_tokens >= 0) return;
  request->cached_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(request->computed, request->prompt_tokens));
  CountPrefix(*request, 1);
}

// Adds what the request found at its first admission, or subtracts it if that admission failed.
void Scheduler::CountPrefix(const Request& request, std::int64_t sign) {
  prefix_stats_.looked_up_tokens += sign * request.prompt_tokens;
  prefix_stats_.found_tokens += sign * request.cached_tokens;
  prefix_stats_.from_host_tokens += sign * std::min(request.fetched_tokens, request.cached_tokens);
}

// REQUIRES: no step that copies the page is in flight. The page has been copied, or will not be.
void Scheduler::EndCopy(Request* request, TimeNs now) {
  if (!request->copied_from.has_value()) return;
  tree_->UnlockLast(*request->copied_from, now);
  request->copied_from.reset();
}

// No step is in flight, so a page can be freed at once if the tree already has its content.
void Scheduler::InsertFilledPages(Request* request, TimeNs now) {
  const auto size = static_cast<std::size_t>(options_.page_tokens);
  const auto done = static_cast<std::size_t>(request->tree_pages) * size,
             computed = static_cast<std::size_t>(request->computed);
  if (computed >= done + 2 * size) {
    tree_->PrefetchInsert(request->tail, std::span<const TokenId>(request->tokens).subspan(done, computed - done));
  }
  for (; (request->tree_pages + 1) * options_.page_tokens <= request->computed; ++request->tree_pages) {
    const auto at = static_cast<std::size_t>(request->tree_pages);
    const std::span<const TokenId> tokens = std::span<const TokenId>(request->tokens).subspan(at * size, size);
    const auto inserted = tree_->Insert(request->tail, tokens, request->pages[at], now);
    if (inserted.outcome == DependencyTree::Inserted::kNotNow) return;
    request->tail = inserted.node;
    if (inserted.outcome == DependencyTree::Inserted::kTaken) continue;
    device_->Free(PageCategory::kKv, std::span(&request->pages[at], 1));
    request->pages[at] = tree_->Page(inserted.node);
    request->page_table[at] = request->pages[at].index;
  }
}

// ---------------------------------------------------------------- Queues

void Scheduler::ReleaseMemory(Request* request, TimeNs now) {
  EndCopy(request, now);
  device_->Free(PageCategory::kKv, std::span(request->pages).subspan(static_cast<std::size_t>(request->tree_pages)));
  if (tree_ != nullptr) tree_->Unlock(request->tail, now);
  request->tree_pages = 0;
  request->pages.clear();
  request->page_table.clear();
  request->computed = 0;
  if (request->adapter == kBaseModel) return;
  residency_->Unpin(request->adapter, now);
  if (--pins_[residency_->SlotOf(request->adapter)] == 0) --pinned_adapters_;
}

void Scheduler::Pin(AdapterGeneration generation, TimeNs now) {
  residency_->Pin(generation, now);
  const std::size_t slot = residency_->SlotOf(generation);
  if (pins_.size() <= slot) pins_.resize(slot + 1, 0);
  if (pins_[slot]++ == 0) ++pinned_adapters_;
}

void Scheduler::Preempt(Request* request, TimeNs now) {
  squashes_ += request->overtook != RequestId{};
  request->squashed |= request->overtook != RequestId{};
  EraseRunning(request);
  ReleaseMemory(request, now);
  request->state = RequestState::kWaiting;
  if (tree_ != nullptr) tree_->Want(request->tail);
  tenants_.Return(request, now);
  ++request->preemptions;
  ++preemptions_;
  if (waiting_head_ > 0) {
    waiting_[--waiting_head_] = request;
  } else {
    waiting_.insert(waiting_.begin(), request);
  }
  // The request is older than all that were never admitted, but other preempted requests may be older.
  const auto begin = waiting_.begin() + static_cast<std::ptrdiff_t>(waiting_head_);
  for (auto it = begin; it + 1 != waiting_.end() && OlderThan(*(it + 1), *it); ++it) std::swap(*it, *(it + 1));
}

void Scheduler::InsertRunning(Request* request) {
  running_.insert(std::lower_bound(running_.begin(), running_.end(), request, OlderThan), request);
  by_rank_.push_back(request);
  lane_use_[static_cast<std::size_t>(request->lane)] += static_cast<double>(ExtentOf(*request).total());
  overtakers_ += request->overtook != RequestId{};
}

void Scheduler::EraseRunning(Request* request) {
  const auto found = std::lower_bound(running_.begin(), running_.end(), request, OlderThan);
  CHECK(found != running_.end() && *found == request);
  running_.erase(found);
  by_rank_.erase(std::find(by_rank_.begin(), by_rank_.end(), request));
  lane_use_[static_cast<std::size_t>(request->lane)] -= static_cast<double>(ExtentOf(*request).total());
  overtakers_ -= request->overtook != RequestId{};
  request->overtook = {};
}

void Scheduler::EraseWaiting(Request* request) {
  const auto begin = waiting_.begin() + static_cast<std::ptrdiff_t>(waiting_head_);
  const auto found = std::lower_bound(begin, waiting_.end(), request, OlderThan);
  CHECK(found != waiting_.end() && *found == request);
  std::move_backward(begin, found, found + 1);  // usually it is the first, and nothing moves
  ++waiting_head_;
  if (waiting_head_ > 1024 && waiting_head_ * 2 > waiting_.size()) {
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(waiting_head_));
    waiting_head_ = 0;
  }
}

void Scheduler::CheckIntegrity() const {
  tenants_.CheckIntegrity();
  queue_->CheckIntegrity();
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
    kv_pages += static_cast<std::int64_t>(request->pages.size()) - request->tree_pages;
    if (tree_ != nullptr) CHECK_EQ(tree_->Depth(request->tail), request->tree_pages);
    if (request->copied_from.has_value()) CHECK(tree_->Parent(*request->copied_from) == request->tail);
    if (request->adapter != kBaseModel) ++pins[residency_->SlotOf(request->adapter)];
  }
  CheckLanes();
  for (const Request* request : waiting()) {
    CHECK(request->state == RequestState::kWaiting);
    CHECK(request->pages.empty() && !request->copied_from.has_value());
    CHECK_EQ(request->computed, 0);
  }
  if (tree_ != nullptr) CheckTree();
  if (tree_ != nullptr) kv_pages += tree_->pages() + tree_->orphans();
  CHECK_EQ(kv_pages, device_->Stats().used(PageCategory::kKv));
  if (tiers_ != nullptr) {
    CHECK_EQ(tree_->host_pages() + tree_->orphans(), residency_->host()->Stats().used(PageCategory::kKv));
  }
  CHECK_LE(pins_.size(), pins.size());
  for (std::size_t i = 0; i < pins.size(); ++i) {
    CHECK_EQ(pins[i], residency_->All()[i].pins);
    CHECK_EQ(pins[i], i < pins_.size() ? pins_[i] : 0);
  }
  CHECK_EQ(pinned_adapters_, std::count_if(pins_.begin(), pins_.end(), [](std::int32_t pins) { return pins > 0; }));
}

// The tokens in use by lane must be those of the running requests.
void Scheduler::CheckLanes() const {
  std::array<double, kMaxLanes> use = {};
  std::int64_t overtakers = 0;
  for (const Request* request : running_) {
    use[static_cast<std::size_t>(request->lane)] += static_cast<double>(ExtentOf(*request).total());
    overtakers += request->overtook != RequestId{};
  }
  // exact: the sums are integers
  for (std::size_t lane = 0; lane < use.size(); ++lane) CHECK(use[lane] == lane_use_[lane]);
  CHECK_EQ(overtakers, overtakers_);
}

// All history is usable: the device has an adapter of its content.
void Scheduler::CheckTree() const {
  tree_->CheckIntegrity();
  if (!options_.maintain_dependency) return;
  std::vector<bool> usable;
  for (const AdapterResidency& adapter : residency_->All()) {
    if (adapter.version == nullptr || !HasBranch(adapter.slot)) continue;
    const std::uint32_t branch = branch_of_slot_[adapter.slot]->value;
    if (usable.size() <= branch) usable.resize(branch + 1, false);
    usable[branch] = usable[branch] || adapter.device == TierState::kResident || tree_->pages(BranchId{branch}) == 0;
  }
  for (const AdapterResidency& adapter : residency_->All()) {
    if (adapter.version != nullptr && HasBranch(adapter.slot)) CHECK(usable[branch_of_slot_[adapter.slot]->value]);
  }
}

}  // namespace loramux
