#include "kernels/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>
#include <sched.h>

#include "base/check.h"
#include "base/clock.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace loramux {

int AvailableProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}
namespace {

// Tells the core that this is a spin loop.
inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// How long a thread spins before it sleeps: longer than the serial stretches of a forward pass and those between two
// steps, far shorter than an idle engine. To wake a thread costs a few microseconds, on a virtual machine with an idle
// processor 50 or more. Workers with a task end soon, unless the operating system took their core away; it gives them
// another core only if that one is idle.
constexpr TimeNs kSpin = 100'000;

// Spins until done() or for kSpin. Returns whether done() was true. A pause takes 40 to 140 cycles on current x86
// cores, so that time and not pauses are counted.
template <typename F>
bool SpinUntil(const F& done) {
  constexpr int kPauses = 64;  // between two looks at the clock
  for (int i = 0; i < kPauses; ++i) {
    if (done()) return true;
    Pause();
  }
  const OsClock clock;
  for (const TimeNs end = clock.Now() + kSpin; clock.Now() < end;) {
    for (int i = 0; i < kPauses; ++i) {
      if (done()) return true;
      Pause();
    }
  }
  return done();
}

}  // namespace

// A loop is open from its publication until the caller finds no task left. A worker joins an open loop by counting
// itself in `ticket`. A worker that wakes up too late finds the loop closed, and the caller does not wait for it.
struct ThreadPool::State {
  static constexpr std::uint64_t kOpen = std::uint64_t{1} << 31;
  static constexpr std::uint64_t kActiveMask = kOpen - 1;

  // Written by the caller while the loop is closed and no worker is active.
  Trampoline trampoline = nullptr;
  const void* fn = nullptr;
  std::int64_t tasks = 0;

  // Separate cache lines: workers poll `generation`, all threads hammer `next_task`.
  alignas(64) std::atomic<std::uint32_t> generation{0};
  alignas(64) std::atomic<std::uint64_t> ticket{0};  // loop number << 32 | kOpen | active workers
  alignas(64) std::atomic<std::int64_t> next_task{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;

  void RunTasks(int thread) {
    const Trampoline call = trampoline;
    const void* function = fn;
    const std::int64_t count = tasks;
    for (;;) {
      const std::int64_t task = next_task.fetch_add(1, std::memory_order_relaxed);
      if (task >= count) return;
      call(function, task, thread);
    }
  }

  // Counts this worker in if a loop is open. The acquire makes the job's fields visible.
  bool Join() {
    std::uint64_t seen = ticket.load(std::memory_order_relaxed);
    while ((seen & kOpen) != 0) {
      if (ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }

  // Returns a generation other than `seen`: spins for a while, then sleeps.
  std::uint32_t WaitForChange(std::uint32_t seen) {
    std::uint32_t now = seen;
    const auto changed = [&] { return (now = generation.load(std::memory_order_acquire)) != seen; };
    if (SpinUntil(changed)) return now;
    generation.wait(seen, std::memory_order_acquire);
    return generation.load(std::memory_order_acquire);
  }

  void WorkerLoop(int thread) {
    std::uint32_t seen = 0;
    while (!stop.load(std::memory_order_acquire)) {
      seen = WaitForChange(seen);
      if (!Join()) continue;
      RunTasks(thread);
      Leave();
    }
  }

  void Publish() {
    ticket.store(((ticket.load(std::memory_order_relaxed) >> 32) + 1) << 32 | kOpen, std::memory_order_release);
    Wake();
  }

  // Sequentially consistent: the increment must not be reordered after notify_all's check for sleepers.
  void Wake() {
    generation.fetch_add(1, std::memory_order_seq_cst);
    generation.notify_all();
  }

  // Sequentially consistent, as Wake(): the caller may sleep until the last worker leaves a closed loop.
  void Leave() {
    if (ticket.fetch_sub(1, std::memory_order_seq_cst) % (2 * kOpen) == 1) ticket.notify_one();
  }

  // Called when no task is left: closes the loop to workers, and waits for those that joined.
  void CloseAndWait() {
    ticket.fetch_and(~kOpen, std::memory_order_relaxed);
    if (SpinUntil([this] { return (ticket.load(std::memory_order_acquire) & kActiveMask) == 0; })) return;
    for (std::uint64_t seen; ((seen = ticket.load(std::memory_order_acquire)) & kActiveMask) != 0;) {
      ticket.wait(seen, std::memory_order_acquire);
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()), size_(threads) {
  CHECK_GE(threads, 1);
  for (int i = 1; i < threads; ++i) state_->workers.emplace_back([state = state_.get(), i] { state->WorkerLoop(i); });
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_release);
  state_->Wake();
  for (std::thread& worker : state_->workers) worker.join();
}

void ThreadPool::RunErased(std::int64_t tasks, Trampoline trampoline, const void* fn) {
  if (tasks <= 0) return;
  ++loops_;
  if (tasks == 1 || size_ == 1) {
    for (std::int64_t task = 0; task < tasks; ++task) trampoline(fn, task, 0);
    return;
  }
  State& state = *state_;
  state.trampoline = trampoline;
  state.fn = fn;
  state.tasks = tasks;
  state.next_task.store(0, std::memory_order_relaxed);
  state.Publish();
  state.RunTasks(0);
  state.CloseAndWait();
}

}  // namespace loramux
