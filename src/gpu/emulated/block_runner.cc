#include "gpu/emulated/block_runner.h"

#include <utility>
#include <sys/mman.h>

#include "base/check.h"
#include "gpu/emulated/block_state.h"
#include "gpu/emulated/warp_math.h"

namespace loramux::gpu {
namespace {

using emulated::Meeting;
using emulated::place;

std::uint64_t Mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

void Entry(context::transfer_t transfer);

// Each stack begins at another offset: else the same frames of all lanes share one set of the cache.
void ResetFiber(Fiber& fiber, std::size_t index) {
  char* top = fiber.memory + kGuardBytes + kStackBytes - index % 64 * 448;
  fiber.context.at = context::make_fcontext(top, kStackBytes / 2, &Entry);
  fiber.context.stack = fiber.memory + kGuardBytes;
  fiber.context.stack_bytes = kStackBytes;
  fiber.context.fake_stack = nullptr;
#ifdef LORAMUX_ASAN
  __asan_unpoison_memory_region(fiber.memory + kGuardBytes, kStackBytes);
#endif
}

void FreeFiber(Fiber* fiber) {
  if (kFibersAreShared) state->free_fibers[state->num_free++] = fiber;
}

std::string DescribeWaiting() {
  std::string text;
  const auto add = [&](std::uint32_t count, const char* what) {
    if (count != 0) text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + what;
  };
  add(state->at_barrier, "wait in SyncBlock");
  for (int kind = static_cast<int>(Meeting::kWarp); kind <= static_cast<int>(Meeting::kMatricesTransposed); ++kind) {
    std::uint32_t waiting = 0;
    for (std::uint32_t w = 0; w < state->warps; ++w) {
      const WarpLanes& warp = state->warp_state[w];
      if (warp.meeting == static_cast<Meeting>(kind)) waiting += warp.arrived;
    }
    add(waiting, (std::string("wait in ") + NameOf(static_cast<Meeting>(kind))).c_str());
  }
  add(state->launch->threads - state->alive, "have ended");
  return "not all threads of the block meet: of " + std::to_string(state->launch->threads) + ", " + text;
}

void EndThread() {
  Thread& thread = state->Current();
  WarpLanes& warp = state->warp_state[place.thread / 32];
  warp.runnable &= ~(std::uint32_t{1} << warp.position);
  thread.fiber = nullptr;
  --state->alive;
}

// A fiber runs threads one after the other: those that never wait need no fiber of their own.
void Entry(context::transfer_t transfer) {
  Landed(transfer, state->current->context);
  Fiber* const self = state->current;
  while (true) {
    LORAMUX_TSAN_CALL(__tsan_acquire(&state->launch->start));
    state->launch->kernel.run(state->launch->arguments);
    LORAMUX_TSAN_CALL(__tsan_release(&state->launch->end));
    EndThread();
    if (!PickNext()) {
      if (state->alive != 0) NotAllThreadsMeet();
      FreeFiber(self);
      JumpToHost();
    } else if (!kFibersAreShared || state->Current().fiber != nullptr) {
      FreeFiber(self);
      JumpToCurrent(self->context);
    } else {
      state->Current().fiber = self;
    }
  }
}

void ShuffleOrders(std::uint64_t seed) {
  std::uint64_t random = seed;
  for (Order& order : state->orders) {
    for (std::uint32_t i = 0; i < 32; ++i) {
      order[i] = static_cast<std::uint8_t>(i);
      if (seed == 0) continue;
      random += 0x9e3779b97f4a7c15u;
      std::swap(order[i], order[Mix(random) % (i + 1)]);
    }
  }
}

// After a fault: threads were left where they stood. What they did was before the end of the launch nevertheless.
void AbandonThreads() {
  state->used_fibers = state->num_free = 0;
  for (std::size_t i = 0; i < state->fibers.size(); ++i) {
    if (state->fibers[i].memory != nullptr) ResetFiber(state->fibers[i], i);
  }
  for (Thread& thread : state->threads) {
    thread.fiber = nullptr;
#ifdef LORAMUX_EMULATOR_TSAN
    if (thread.tsan == nullptr) continue;
    __tsan_switch_to_fiber(thread.tsan, __tsan_switch_to_fiber_no_sync);
    __tsan_release(&state->launch->end);
    __tsan_switch_to_fiber(state->tsan_host, __tsan_switch_to_fiber_no_sync);
    __tsan_destroy_fiber(thread.tsan);
    thread.tsan = nullptr;
#endif
  }
  LORAMUX_TSAN_CALL(__tsan_acquire(&state->launch->end));
}

void StartBlock(const BlockLaunch& launch, std::uint64_t block) {
  const std::uint64_t row = block / launch.grid.x;
  place.block_threads = launch.threads;
  place.block[0] = static_cast<std::uint32_t>(block % launch.grid.x);
  place.block[1] = static_cast<std::uint32_t>(row % launch.grid.y);
  place.block[2] = static_cast<std::uint32_t>(row / launch.grid.y);
  place.grid[0] = launch.grid.x, place.grid[1] = launch.grid.y, place.grid[2] = launch.grid.z;
  place.shared = nullptr;
  place.shared_bytes = launch.shared_bytes;
  state->launch = &launch;
  state->alive = launch.threads;
  state->at_barrier = 0;
  state->warps = launch.threads / 32;
  std::uint64_t random = launch.seed == 0 ? 0 : Mix(launch.seed + (block + 1) * 0x9e3779b97f4a7c15u);
  std::uint32_t filled = 0;
  for (const std::uint8_t warp : state->orders[random % kOrders]) {
    if (warp < state->warps) state->warp_order[filled++] = warp;
  }
  for (std::uint32_t w = 0; w < state->warps; ++w) {
    WarpLanes& warp = state->warp_state[w];
    warp.phase = warp.arrived = 0;
    warp.meeting = Meeting::kNone;
    warp.runnable = ~std::uint32_t{0};
    warp.position = 31;
    if (launch.seed != 0) random = random * 6364136223846793005u + 1442695040888963407u;
    warp.order = state->orders[random >> 58].data();
  }
  for (std::uint32_t t = 0; t < launch.threads; ++t) {
    state->threads[t].groups = 0;
    state->threads[t].copies.clear();
    LORAMUX_TSAN_CALL(if (state->threads[t].tsan == nullptr) state->threads[t].tsan = __tsan_create_fiber(0));
  }
  state->warp = 0;
  state->sync_of_block = (state->sync_of_block + 1) % state->sync.size();
}

}  // namespace

Fiber* TakeFiber() {
  if (state->num_free > 0) return state->free_fibers[--state->num_free];
  const std::size_t index = kFibersAreShared ? state->used_fibers++ : place.thread;
  Fiber& fiber = state->fibers[index];
  if (fiber.memory == nullptr) {
    void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK(mprotect(memory, kGuardBytes, PROT_NONE) == 0);
    fiber.memory = static_cast<char*>(memory);
    ResetFiber(fiber, index);
  }
  return &fiber;
}

bool PickNext() {
  for (std::uint32_t tried = 0; tried <= state->warps; ++tried) {
    WarpLanes& warp = state->warp_state[state->warp_order[state->warp]];
    if (warp.runnable != 0) {
      RunNextOf(warp);
      return true;
    }
    if (++state->warp == state->warps) state->warp = 0;
  }
  return false;
}

void JumpToHost() {
  LORAMUX_TSAN_CALL(__tsan_switch_to_fiber(state->tsan_host, __tsan_switch_to_fiber_no_sync));
  Jump(state->current->context, state->host);
}

void KernelFault(std::string&& what) {
  *state->fault = "kernel " + std::string(state->launch->kernel.name) + ", block (" + std::to_string(place.block[0]) +
                  ", " + std::to_string(place.block[1]) + ", " + std::to_string(place.block[2]) + "), thread " +
                  std::to_string(place.thread) + ": " + what;
  std::string().swap(what);
  state->failed = true;
  JumpToHost();
  __builtin_unreachable();
}

void NotAllThreadsMeet() { KernelFault(DescribeWaiting()); }

BlockRunner& BlockRunner::OfThisThread() {
  static thread_local BlockRunner runner;
  return runner;
}

BlockRunner::BlockRunner() : state_(new State) {
  state_->fault = &fault_;
  void* shared = mmap(nullptr, kMaxSharedBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  state_->shared = static_cast<std::byte*>(shared);
  state = state_;
  ShuffleOrders(0);
}

BlockRunner::~BlockRunner() {
  for (Fiber& fiber : state_->fibers) {
    if (fiber.memory == nullptr) continue;
#ifdef LORAMUX_ASAN
    // The next mapping at these addresses must not inherit what the sanitizer noted about frames.
    __asan_unpoison_memory_region(fiber.memory + kGuardBytes, kStackBytes);
#endif
    munmap(fiber.memory, kGuardBytes + kStackBytes);
  }
  LORAMUX_TSAN_CALL(for (Thread& thread
                         : state_->threads) if (thread.tsan != nullptr) __tsan_destroy_fiber(thread.tsan));
  munmap(state_->shared, kMaxSharedBytes);
  delete state_;
  state = nullptr;
}

bool BlockRunner::Run(const BlockLaunch& launch, std::uint64_t block) {
  if (state_->map_version != launch.memory->version) {
    for (emulated::AddressRange& range : place.ranges) range = {};
    state_->map_version = launch.memory->version;
    state_->traffic.assign(launch.memory->counting ? launch.memory->watches : 0, {});
  }
  if (state_->seed != launch.seed) {
    state_->seed = launch.seed;
    ShuffleOrders(launch.seed);
  }
  StartBlock(launch, block);
  state_->failed = false;
  LORAMUX_TSAN_CALL(state_->tsan_host = __tsan_get_current_fiber());
  PickNext();
  JumpToCurrent(state_->host);
  if (state_->failed) AbandonThreads();
  return !state_->failed;
}

void BlockRunner::Start(const BlockLaunch& launch) { LORAMUX_TSAN_CALL(__tsan_release(&launch.start)); }

std::vector<Traffic> BlockRunner::Leave(const BlockLaunch& launch) {
  LORAMUX_TSAN_CALL(__tsan_acquire(&launch.end));
  std::vector<Traffic> taken;
  if (launch.memory->counting) taken = state_->traffic;
  for (Traffic& traffic : state_->traffic) traffic = {};
  return taken;
}

}  // namespace loramux::gpu
