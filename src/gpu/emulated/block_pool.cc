#include "gpu/emulated/block_pool.h"

#include <atomic>

namespace loramux::gpu {
namespace {

// Work that is done sooner is not worth waking a thread for.
constexpr TimeNs kAloneNs = 20 * kNsPerUs;

}  // namespace

struct BlockPool::Job {
  std::uint64_t count;
  const std::function<bool(std::uint64_t)>& item;
  const std::function<void()>& leave;
  std::atomic<std::uint64_t> next{0};
  int helpers = 0;  // helpers that are at it; guarded by mutex_
};

BlockPool::BlockPool(int threads) {
  for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { Help(); });
}

BlockPool::~BlockPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void BlockPool::TakePart(Job& job) {
  for (std::uint64_t i = job.next++; i < job.count; i = job.next++) {
    if (!job.item(i)) job.next = job.count;
  }
  job.leave();
}

void BlockPool::Help() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    Job* job = jobs_.front();
    ++job->helpers;
    lock.unlock();
    TakePart(*job);
    lock.lock();
    jobs_.remove(job);  // nothing of it is left to take
    --job->helpers;
    done_.notify_all();
  }
}

void BlockPool::Run(std::uint64_t count, const std::function<bool(std::uint64_t)>& item,
                    const std::function<void()>& leave) {
  Job job{count, item, leave};
  if (helpers_.empty()) return TakePart(job);
  const TimeNs start = clock_.Now();
  for (std::uint64_t i = job.next++; i < count; i = job.next++) {
    if (!item(i)) {
      leave();
      return;
    }
    if (i + 1 < count && clock_.Now() - start > kAloneNs) {
      {
        const std::lock_guard lock(mutex_);
        jobs_.push_back(&job);
      }
      work_.notify_all();
      TakePart(job);
      std::unique_lock lock(mutex_);
      jobs_.remove(&job);
      done_.wait(lock, [&] { return job.helpers == 0; });
      return;
    }
  }
  leave();
}

}  // namespace loramux::gpu
