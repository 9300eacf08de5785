// Threads for work on untrusted input, shared fairly by tenants: parsing, templates, tokenizing, serialising. Needs
// coroutines.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "http/run_on.h"

namespace loramux {

// Settings of a FairWorkQueue.
struct FairWorkOptions {
  int threads = 1;        // pieces of work that run at a time
  int spare_threads = 3;  // further ones, for the tenants that wait behind a piece that takes longer than `turn`
  TimeNs turn = 10 * kNsPerMs;
  int threads_per_tenant = 0;  // threads that work of one tenant may have; 0: all of `threads`
  int niceness = 0;            // 1 to 19: the threads leave the processor to those with less
};

// Thread-safe. Each tenant has a queue of its own, first come, first served. Among tenants whose work waits, the one
// that has used the least time goes next; a tenant that begins to wait starts level with the others, so that idle time
// earns no credit.
//
// Work cannot be interrupted. So a piece that runs longer than `turn` no longer counts as one of `threads`: another
// tenant's work starts on a spare thread, and the operating system divides the processor between the two. Work of the
// same tenant waits. Each tenant can occupy one spare thread at most, so that only as many tenants as there are spare
// threads could together hold up another.
class FairWorkQueue {
 public:
  // `clock` must outlive the queue.
  FairWorkQueue(const Clock& clock, FairWorkOptions options);
  // Runs the work that is queued, then ends the threads.
  ~FairWorkQueue();
  FairWorkQueue(const FairWorkQueue&) = delete;
  FairWorkQueue& operator=(const FairWorkQueue&) = delete;

  // Queues work of a tenant. `work` must not throw. It is destroyed on the thread that ran it.
  void Post(const std::string& tenant, std::function<void()> work);

  // Tenants with work that waits or runs. Others are not remembered.
  std::size_t tenants() const;

 private:
  // A tenant with work.
  struct Tenant {
    std::deque<std::function<void()>> waiting;
    TimeNs used = 0;  // time of its work so far, from the level at which it began
    int running = 0;
  };
  using Tenants = std::map<std::string, Tenant>;
  // Work that runs.
  struct Running {
    Tenants::iterator tenant;
    TimeNs since;
  };

  void RunThread();
  // Waits for work that may start and takes it. False: the queue ends.
  bool Take(std::unique_lock<std::mutex>& lock, Tenants::iterator& tenant, std::function<void()>& work);
  // Returns the tenant whose work may start at `now`, or end().
  Tenants::iterator Next(TimeNs now);
  // True if the tenant's work may start: it has a place of `threads`, or a spare one.
  bool MayStart(const Tenant& tenant, TimeNs now) const;
  bool Overdue(const Running& running, TimeNs now) const { return now - running.since >= options_.turn; }
  // The time until the next piece that runs becomes overdue; one hour if none will.
  TimeNs UntilOverdue(TimeNs now) const;
  // Least time used of the tenants with work.
  TimeNs Level() const;
  void Finish(Tenants::iterator tenant, TimeNs since);

  const Clock& clock_;
  const FairWorkOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Tenants tenants_;
  std::vector<Running> running_;
  std::size_t waiting_ = 0;  // pieces of all tenants
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

// Runs `function` on the queue as work of `tenant`, as RunElsewhere does.
template <typename Function>
boost::asio::awaitable<void> RunOn(FairWorkQueue& queue, std::string tenant, Function function) {
  return RunElsewhere([&queue, tenant = std::move(tenant)](auto work) { queue.Post(tenant, std::move(work)); },
                      std::move(function));
}

// The same, unless the client is gone when the turn of this work comes: then `function` is not called. `gone` must
// outlive the calling coroutine (HttpExchange::WatchClient).
template <typename Function>
boost::asio::awaitable<void> RunOn(FairWorkQueue& queue, std::string tenant, const std::atomic<bool>& gone,
                                   Function function) {
  return RunOn(queue, std::move(tenant), [&gone, function = std::move(function)]() mutable {
    if (!gone) function();
  });
}

}  // namespace loramux
