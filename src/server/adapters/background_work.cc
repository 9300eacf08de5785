#include "server/adapters/background_work.h"

namespace loramux {

BackgroundWork::~BackgroundWork() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  came_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void BackgroundWork::Post(const std::string& key, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (stop_ || !keys_.insert(key).second) return;
    waiting_.emplace_back(key, std::move(work));
    const bool all_busy = waiting_.size() > static_cast<std::size_t>(idle_);
    if (all_busy && threads_.size() < static_cast<std::size_t>(most_threads_)) threads_.emplace_back([this] { Run(); });
  }
  came_.notify_one();
}

void BackgroundWork::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    came_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    --idle_;
    if (stop_) return;
    const auto [key, work] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work();
    lock.lock();
    keys_.erase(key);
  }
}

}  // namespace loramux
