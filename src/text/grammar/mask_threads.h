// Threads that compute the masks of constrained decoding beside the forward pass.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace loramux {

// Runs tasks in the order in which they were posted. Thread-safe.
class MaskThreads {
 public:
  explicit MaskThreads(int threads);
  // Drops the tasks that have not begun. Not for the pool's own threads.
  ~MaskThreads();
  MaskThreads(const MaskThreads&) = delete;
  MaskThreads& operator=(const MaskThreads&) = delete;

  // Does not wait. A task must not throw.
  void Post(std::function<void()> task);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace loramux
