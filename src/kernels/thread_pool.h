// A fixed set of worker threads for kernels. The division of work never changes a result: each output element is
// computed by one thread, in an order that depends on the element alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace loramux {

// The number of processors that this process may run on (its CPU affinity).
int AvailableProcessors();

// Runs parallel loops. The calling thread takes part as thread 0. Workers spin briefly between loops (a decode step has
// hundreds of them), then sleep. One caller at a time.
class ThreadPool {
 public:
  // REQUIRES: threads >= 1; 1 means no worker.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // The number of threads, including the caller.
  int size() const { return size_; }
  // Loops run so far. Tests use it to bound the number of parallel regions of a batch.
  std::int64_t loops() const { return loops_; }

  // Calls fn(task, thread) for each task in [0, tasks), with thread in [0, size()). Returns when all calls have
  // returned. Tasks are handed out dynamically in ascending order. fn must not throw. A single task runs inline. `fn`
  // is any callable; no allocation.
  template <typename F>
  void Run(std::int64_t tasks, const F& fn) {
    RunErased(
        tasks, [](const void* f, std::int64_t task, int thread) { (*static_cast<const F*>(f))(task, thread); }, &fn);
  }

 private:
  using Trampoline = void (*)(const void* fn, std::int64_t task, int thread);
  void RunErased(std::int64_t tasks, Trampoline trampoline, const void* fn);
  struct State;
  std::unique_ptr<State> state_;
  int size_;
  std::int64_t loops_ = 0;
};

}  // namespace loramux
