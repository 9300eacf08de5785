#include "engine/snapshot.h"

#include <algorithm>
#include <utility>

namespace loramux {
namespace {

// Waiting requests by residency slot.
std::vector<std::int64_t> CountWaiting(const Scheduler& scheduler, const ResidencyManager& residency) {
  std::vector<std::int64_t> waiting(residency.All().size(), 0);
  for (const Request* request : scheduler.waiting()) {
    if (request->adapter != kBaseModel) ++waiting[residency.SlotOf(request->adapter)];
  }
  return waiting;
}

// Lanes and tokens of the requests.
void CountTokens(const Scheduler& scheduler, EngineSnapshot& snapshot) {
  snapshot.max_batch_tokens = scheduler.options().max_batch_tokens;
  for (const Request* request : scheduler.waiting()) {
    ++snapshot.lane_waiting[static_cast<std::size_t>(request->lane)];
    snapshot.waiting_tokens += request->uncomputed();
  }
  for (const Request* request : scheduler.running()) {
    snapshot.running_prompt_tokens += std::max<std::int64_t>(0, request->prompt_tokens - request->computed);
    snapshot.running_context += request->computed;
  }
}

}  // namespace

std::shared_ptr<const EngineSnapshot> MakeSnapshot(TimeNs now, const EngineStats& stats, std::int64_t page_tokens,
                                                   const ResidencyManager& residency, const Scheduler& scheduler) {
  auto snapshot = std::make_shared<EngineSnapshot>();
  snapshot->made_at = now;
  snapshot->stats = stats;
  snapshot->page_tokens = page_tokens;
  snapshot->lane_waiting.assign(static_cast<std::size_t>(scheduler.queue().lanes()), 0);
  CountTokens(scheduler, *snapshot);
  const auto& known = residency.All();
  const std::vector<std::int64_t> waiting = CountWaiting(scheduler, residency);
  snapshot->adapters.reserve(known.size());
  for (std::size_t i = 0; i < known.size(); ++i) {
    const AdapterResidency& adapter = known[i];
    if (adapter.version == nullptr) continue;
    const bool pinned = adapter.kept;
    snapshot->adapters.push_back({VersionSummary(*adapter.version), adapter.device, adapter.host, pinned, adapter.users,
                                  waiting[i], adapter.last_use, adapter.loads, adapter.uses, adapter.last_load_time});
  }
  return snapshot;
}

void SnapshotExchange::Deliver(std::shared_ptr<const EngineSnapshot> snapshot) {
  {
    const std::lock_guard lock(mutex_);
    last_ = std::move(snapshot);
    wanted_.store(false, std::memory_order_relaxed);
  }
  delivered_.notify_all();
}

}  // namespace loramux
