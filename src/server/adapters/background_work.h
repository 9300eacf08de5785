// Work that waits for the network, on threads of its own, so that nothing else waits for it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace loramux {

// Thread-safe.
class BackgroundWork {
 public:
  explicit BackgroundWork(int threads) : most_threads_(threads) {}
  // Drops what has not begun, and waits for what runs.
  ~BackgroundWork();
  BackgroundWork(const BackgroundWork&) = delete;
  BackgroundWork& operator=(const BackgroundWork&) = delete;

  // Runs `work` on a thread, in the order of the calls. Does nothing if work with this key waits or runs.
  void Post(const std::string& key, std::function<void()> work);

  // How much waits or runs.
  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return keys_.size();
  }

 private:
  void Run();

  const int most_threads_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::pair<std::string, std::function<void()>>> waiting_;
  std::set<std::string> keys_;  // keys of all work that waits or runs
  bool stop_ = false;
  int idle_ = 0;
  std::vector<std::thread> threads_;  // started when they are needed
};

}  // namespace loramux
