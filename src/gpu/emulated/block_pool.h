// Threads that share a piece of work: the multiprocessors of the emulated device.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace loramux::gpu {

// Thread-safe: several streams have work at once.
class BlockPool {
 public:
  // `threads`: how many work at once for one caller, which is one of them.
  explicit BlockPool(int threads);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Calls item(i) for i < count, on this and other threads, until one returns false; each thread that took part calls
  // `leave` at its end. Returns once all have.
  void Run(std::uint64_t count, const std::function<bool(std::uint64_t)>& item, const std::function<void()>& leave);

 private:
  struct Job;
  void Help();
  static void TakePart(Job& job);

  const OsClock clock_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::list<Job*> jobs_;  // jobs that take helpers
  bool stopping_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace loramux::gpu
