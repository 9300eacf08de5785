// The queues, and what is done with a plan. The plan itself: scheduler_plan.cc and scheduler_memory.cc.
#include "schedule/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace loramux {
namespace {

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
  --pins_[residency_->SlotOf(request->adapter)];
}

void Scheduler::Pin(AdapterGeneration generation, TimeNs now) {
  residency_->Pin(generation, now);
  const std::size_t slot = residency_->SlotOf(generation);
  if (pins_.size() <= slot) pins_.resize(slot + 1, 0);
  ++pins_[slot];
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
    if (request->adapter != kBaseModel) ++pins[residency_->SlotOf(request->adapter)];
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
