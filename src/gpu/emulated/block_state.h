// The state of the block that runs on a thread, and the switches between its fibers: what the runner (block_runner.cc)
// and the calls of kernels (kernel_calls.cc) share. Neither is instrumented by ThreadSanitizer: they tell it what it
// needs to know.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
#include <boost/context/detail/fcontext.hpp>

#include "gpu/emulated/block_runner.h"
#include "gpu/emulated/sanitizers.h"
#include "gpu/kernel_api.h"

namespace loramux::gpu {

namespace context = boost::context::detail;

inline constexpr std::uint32_t kMaxThreads = 1024;
inline constexpr std::uint32_t kMaxWarps = kMaxThreads / 32;
inline constexpr std::size_t kStackBytes = std::size_t{128} << 10;
inline constexpr std::size_t kGuardBytes = 4096;
#ifdef LORAMUX_EMULATOR_TSAN
inline constexpr bool kFibersAreShared = false;  // the frames of two threads at one place would look like a race
#else
inline constexpr bool kFibersAreShared = true;
#endif
inline constexpr std::size_t kMaxSharedBytes = std::size_t{256} << 10;

// Where a fiber, or the host's stack, stands.
struct Context {
  context::fcontext_t at = nullptr;
  const void* stack = nullptr;  // lowest address
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
};

struct Fiber {
  Context context;
  char* memory = nullptr;  // null: never used
};

struct AsyncCopy {
  void* to;
  const void* from;  // host address; null: zeros
  int group;
};

// A CUDA thread.
struct Thread {
  Fiber* fiber = nullptr;  // null: not started, or ended
  void* tsan = nullptr;
  int groups = 0;
  std::vector<AsyncCopy> copies;
};

struct WarpLanes {
  alignas(64) std::uint32_t slots[2][32][8];  // two sets: no lane can be two meetings ahead
  std::uint32_t phase = 0, arrived = 0;
  emulated::Meeting meeting = emulated::Meeting::kNone;
  std::uint32_t runnable = 0;  // bit i: lane order[i] can go on
  std::uint32_t position = 0;  // index in `order` of the lane that runs, or ran last
  const std::uint8_t* order = nullptr;
};

inline constexpr std::size_t kOrders = 64;
using Order = std::array<std::uint8_t, 32>;

// The block that runs on this thread of the operating system.
struct BlockRunner::State {
  const BlockLaunch* launch = nullptr;
  std::uint32_t alive = 0, at_barrier = 0;
  std::uint32_t warps = 0, warp = 0;  // how many there are; position in warp_order of the one that runs
  std::uint8_t warp_order[kMaxWarps];
  Context host;
  Fiber* current = nullptr;
  std::string* fault = nullptr;
  bool failed = false;
  void* tsan_host = nullptr;
  // For ThreadSanitizer: what orders the threads of a block, and of its warps. A block has others than the last ones,
  // else its barriers would order the blocks too.
  std::array<std::array<std::uint64_t, kMaxWarps + 1>, 64> sync;
  std::size_t sync_of_block = 0;
  std::byte* shared = nullptr;
  std::uint64_t map_version = 0;
  std::uint64_t seed = 0;
  std::array<Order, kOrders> orders;
  std::array<WarpLanes, kMaxWarps> warp_state;
  std::array<Thread, kMaxThreads> threads;
  std::array<Fiber, kMaxThreads> fibers;
  std::array<Fiber*, kMaxThreads> free_fibers;  // if they are shared
  std::size_t used_fibers = 0, num_free = 0;
  std::vector<Traffic> traffic;

  Thread& Current() { return threads[emulated::place.thread]; }
  void* SyncOfBlock() { return &sync[sync_of_block][kMaxWarps]; }
  void* SyncOfWarp() { return &sync[sync_of_block][emulated::place.thread / 32]; }
};

inline constinit thread_local BlockRunner::State* state = nullptr;

// A fiber that runs no thread.
Fiber* TakeFiber();
// Makes the next lane that can go on the running one: of this warp, else of the next warp that has one. False: there is
// none.
bool PickNext();
void JumpToHost();
// Ends the launch, and with it the device. Threads stay where they stand, and so would what their frames own: empties
// `what`.
[[noreturn]] void KernelFault(std::string&& what);
// Ends the launch: the threads wait for each other.
[[noreturn]] void NotAllThreadsMeet();

// After a switch the processor does not foresee where functions return to: between the kernel and the switch there is
// one function only.
#define LORAMUX_INLINE inline __attribute__((always_inline))

// Keeps where the leaver stands.
LORAMUX_INLINE void Landed(const context::transfer_t& transfer, [[maybe_unused]] Context& here) {
  Context& left = *static_cast<Context*>(transfer.data);
  left.at = transfer.fctx;
#ifdef LORAMUX_ASAN
  __sanitizer_finish_switch_fiber(here.fake_stack, &left.stack, &left.stack_bytes);
#endif
}

LORAMUX_INLINE void Jump(Context& from, Context& to) {
#ifdef LORAMUX_ASAN
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_bytes);
#endif
  Landed(context::jump_fcontext(to.at, &from), from);
}

LORAMUX_INLINE void RunNextOf(WarpLanes& warp) {
  const std::uint32_t later = warp.runnable & (~std::uint32_t{1} << warp.position);
  warp.position = static_cast<std::uint32_t>(std::countr_zero(later != 0 ? later : warp.runnable));
  emulated::place.thread = state->warp_order[state->warp] * 32u + warp.order[warp.position];
  LORAMUX_TSAN_CALL(__tsan_switch_to_fiber(state->Current().tsan, __tsan_switch_to_fiber_no_sync));
}

// Goes on with the running thread, from a fiber that does not.
LORAMUX_INLINE void JumpToCurrent(Context& from) {
  Thread& thread = state->Current();
  if (thread.fiber == nullptr) thread.fiber = TakeFiber();
  state->current = thread.fiber;
  Jump(from, thread.fiber->context);
}

// The running thread cannot go on until others have.
LORAMUX_INLINE void Leave(WarpLanes& warp) {
  Fiber* fiber = state->current;
  warp.runnable &= ~(std::uint32_t{1} << warp.position);
  if (warp.runnable != 0) {
    RunNextOf(warp);
  } else if (!PickNext()) {
    NotAllThreadsMeet();
  }
  JumpToCurrent(fiber->context);
}

}  // namespace loramux::gpu
