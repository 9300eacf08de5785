#include "auth/fair_work_queue.h"

#include <algorithm>
#include <chrono>
#include <sys/resource.h>
#include <unistd.h>

namespace loramux {

FairWorkQueue::FairWorkQueue(const Clock& clock, FairWorkOptions options) : clock_(clock), options_(options) {
  const int threads = std::max(1, options_.threads) + std::max(0, options_.spare_threads);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { RunThread(); });
}

FairWorkQueue::~FairWorkQueue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void FairWorkQueue::Post(const std::string& tenant, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    const auto level = Level();
    const auto [at, added] = tenants_.try_emplace(tenant);
    if (added) at->second.used = level;
    at->second.waiting.push_back(std::move(work));
    ++waiting_;
  }
  changed_.notify_one();
}

std::size_t FairWorkQueue::tenants() const {
  const std::lock_guard lock(mutex_);
  return tenants_.size();
}

TimeNs FairWorkQueue::Level() const {
  if (tenants_.empty()) return {};
  const auto least = std::min_element(tenants_.begin(), tenants_.end(),
                                      [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
  return least->second.used;
}

bool FairWorkQueue::MayStart(const Tenant& tenant, TimeNs now) const {
  const auto overdue = static_cast<int>(
      std::count_if(running_.begin(), running_.end(), [&](const Running& running) { return Overdue(running, now); }));
  const int spare = std::min(overdue, std::max(0, options_.spare_threads));
  const int free = std::max(1, options_.threads) + spare - static_cast<int>(running_.size());
  if (free <= 0) return false;
  if (options_.threads_per_tenant > 0 && tenant.running >= options_.threads_per_tenant) return false;
  // Spare threads are there for tenants that the overdue work holds up, not for more work of its own tenant.
  return tenant.running == 0 || static_cast<int>(running_.size()) < std::max(1, options_.threads);
}

FairWorkQueue::Tenants::iterator FairWorkQueue::Next(TimeNs now) {
  auto best = tenants_.end();
  for (auto tenant = tenants_.begin(); tenant != tenants_.end(); ++tenant) {
    if (tenant->second.waiting.empty() || !MayStart(tenant->second, now)) continue;
    if (best == tenants_.end() || tenant->second.used < best->second.used) best = tenant;
  }
  return best;
}

TimeNs FairWorkQueue::UntilOverdue(TimeNs now) const {
  TimeNs least = 3600 * kNsPerSecond;
  for (const Running& running : running_) {
    if (!Overdue(running, now)) least = std::min(least, running.since + options_.turn - now);
  }
  return least;
}

bool FairWorkQueue::Take(std::unique_lock<std::mutex>& lock, Tenants::iterator& tenant, std::function<void()>& work) {
  while (true) {
    const TimeNs now = clock_.Now();
    tenant = waiting_ > 0 ? Next(now) : tenants_.end();
    if (tenant != tenants_.end()) break;
    if (ending_ && waiting_ == 0) return false;
    if (waiting_ > 0) {
      changed_.wait_for(lock, std::chrono::nanoseconds(UntilOverdue(now)));
    } else {
      changed_.wait(lock);
    }
  }
  work = std::move(tenant->second.waiting.front());
  tenant->second.waiting.pop_front();
  --waiting_;
  ++tenant->second.running;
  return true;
}

void FairWorkQueue::Finish(Tenants::iterator tenant, TimeNs since) {
  const auto mine = std::find_if(running_.begin(), running_.end(), [&](const Running& running) {
    return running.tenant == tenant && running.since == since;
  });
  running_.erase(mine);
  tenant->second.used += clock_.Now() - since;
  --tenant->second.running;
  if (tenant->second.running == 0 && tenant->second.waiting.empty()) tenants_.erase(tenant);
}

void FairWorkQueue::RunThread() {
  // Linux counts it for this thread alone. Work without it is only less polite.
  if (options_.niceness > 0) ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), options_.niceness);
  std::unique_lock lock(mutex_);
  Tenants::iterator tenant;
  std::function<void()> work;
  while (Take(lock, tenant, work)) {
    const TimeNs since = clock_.Now();
    running_.push_back({tenant, since});
    const bool more = waiting_ > 0;
    lock.unlock();
    if (more) changed_.notify_one();  // that thread waits for its turn, or until this work is overdue
    work();
    work = nullptr;
    lock.lock();
    Finish(tenant, since);
  }
  changed_.notify_all();
}

}  // namespace loramux
