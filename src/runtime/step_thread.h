// The thread of an executor: takes steps in order, computes them one after another, and keeps their results.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/executor.h"

namespace loramux {

// Submit and Poll are those of Executor.
class StepThread {
 public:
  // Calls `execute` on the thread for each step, and `on_completion` after it. `execute` fills all but the result's
  // batch, and may add arrivals that the step waits for.
  StepThread(std::function<void(StepBatch&, StepResult&)> execute, std::function<void()> on_completion);
  // Waits for the step that is being computed and drops the others.
  ~StepThread();
  StepThread(const StepThread&) = delete;
  StepThread& operator=(const StepThread&) = delete;

  void Submit(StepBatch batch);
  bool Poll(StepResult& result);

 private:
  void Run();

  const std::function<void(StepBatch&, StepResult&)> execute_;
  const std::function<void()> on_completion_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::vector<StepBatch> queued_;  // in the order of submission; vectors, because there are few
  std::vector<StepResult> done_;   // not polled yet
  StepResult spare_;               // memory for the next result
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace loramux
