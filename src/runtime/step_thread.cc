#include "runtime/step_thread.h"

#include <utility>

namespace loramux {

StepThread::StepThread(std::function<void(StepBatch&, StepResult&)> execute, std::function<void()> on_completion)
    : execute_(std::move(execute)), on_completion_(std::move(on_completion)), thread_([this] { Run(); }) {}

StepThread::~StepThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  thread_.join();
}

void StepThread::Submit(StepBatch batch) {
  {
    const std::lock_guard lock(mutex_);
    queued_.push_back(std::move(batch));
  }
  work_.notify_one();
}

bool StepThread::Poll(StepResult& result) {
  const std::lock_guard lock(mutex_);
  if (done_.empty()) return false;
  std::swap(result, done_.front());
  spare_ = std::move(done_.front());
  done_.erase(done_.begin());
  return true;
}

void StepThread::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stopping_ || !queued_.empty(); });
    if (stopping_) return;
    StepBatch batch = std::move(queued_.front());
    queued_.erase(queued_.begin());
    StepResult result = std::move(spare_);
    lock.unlock();
    execute_(batch, result);
    result.batch = std::move(batch);
    lock.lock();
    done_.push_back(std::move(result));
    lock.unlock();
    on_completion_();
    lock.lock();
  }
}

}  // namespace loramux
