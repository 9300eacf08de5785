// A flag that one thread waits for and any thread sets.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace loramux {

// Thread-safe. A signal that comes before the wait is not lost.
class Wakeup {
 public:
  // Sets the flag and wakes the waiting thread.
  void Signal() {
    {
      const std::lock_guard lock(mutex_);
      signalled_ = true;
    }
    condition_.notify_one();
  }
  // Blocks until signalled, then clears the signal.
  void Wait() {
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [this] { return signalled_; });
    signalled_ = false;
  }
  // The same, but blocks for `longest` at most.
  void WaitFor(std::chrono::nanoseconds longest) {
    std::unique_lock lock(mutex_);
    condition_.wait_for(lock, longest, [this] { return signalled_; });
    signalled_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool signalled_ = false;
};

}  // namespace loramux
