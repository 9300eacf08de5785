#include "gpu/emulated/block_runner.h"

#include <array>
#include <bit>
#include <cstring>
#include <utility>
#include <boost/context/detail/fcontext.hpp>
#include <sys/mman.h>

#include "base/check.h"
#include "gpu/emulated/sanitizers.h"
#include "gpu/emulated/warp_math.h"
#include "gpu/kernel_api.h"

namespace loramux::gpu {
namespace {

namespace context = boost::context::detail;
using emulated::Access;
using emulated::Meeting;
using emulated::place;

constexpr std::uint32_t kMaxThreads = 1024;
constexpr std::uint32_t kMaxWarps = kMaxThreads / 32;
constexpr std::size_t kStackBytes = std::size_t{128} << 10;
constexpr std::size_t kGuardBytes = 4096;
#ifdef LORAMUX_EMULATOR_TSAN
constexpr bool kFibersAreShared = false;  // the frames of two threads at one place would look like a race
#else
constexpr bool kFibersAreShared = true;
#endif
constexpr std::size_t kMaxSharedBytes = std::size_t{256} << 10;

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
  Meeting meeting = Meeting::kNone;
  std::uint32_t runnable = 0;  // bit i: lane order[i] can go on
  std::uint32_t position = 0;  // of the lane that runs, or ran last
  const std::uint8_t* order = nullptr;
  char sync = 0;  // for ThreadSanitizer
};

constexpr std::size_t kOrders = 64;
using Order = std::array<std::uint8_t, 32>;

std::uint64_t Mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

const char* NameOf(Meeting meeting) {
  switch (meeting) {
    case Meeting::kNone:
      break;
    case Meeting::kBlock:
      return "SyncBlock";
    case Meeting::kWarp:
      return "SyncWarp";
    case Meeting::kShuffle:
      return "Shuffle";
    case Meeting::kSum:
    case Meeting::kSumDouble:
    case Meeting::kSumInteger:
      return "SumWarp";
    case Meeting::kMax:
    case Meeting::kMaxWide:
      return "MaxWarp";
    case Meeting::kMultiplyBf16:
    case Meeting::kMultiplyHalf:
      return "MultiplyTile";
    case Meeting::kMatrices:
      return "LoadMatrices";
    case Meeting::kMatricesTransposed:
      return "LoadMatricesTransposed";
  }
  return "nothing";
}

const char* NameOf(Access access) {
  switch (access) {
    case Access::kLoad:
      return "load";
    case Access::kStore:
      return "store";
    case Access::kAsyncCopy:
      return "asynchronous copy";
  }
  return "access";
}

std::string Hex(std::uintptr_t address) {
  std::string text;
  for (; address != 0; address >>= 4) text.insert(text.begin(), "0123456789abcdef"[address & 15]);
  return "0x" + text;
}

}  // namespace

struct BlockRunner::State {
  const BlockLaunch* launch = nullptr;
  std::uint32_t alive = 0, at_barrier = 0;
  std::uint32_t warps = 0, warp = 0;  // how many there are; position in warp_order of the one that runs
  std::uint8_t warp_order[kMaxWarps];
  Context host;
  Fiber* current = nullptr;
  std::string* fault = nullptr;
  bool failed = false;
  char sync = 0;  // for ThreadSanitizer: SyncBlock
  void* tsan_host = nullptr;
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

  Thread& Current() { return threads[place.thread]; }
};

namespace {

thread_local BlockRunner::State* state = nullptr;

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

void FreeFiber(Fiber* fiber) {
  if (kFibersAreShared) state->free_fibers[state->num_free++] = fiber;
}

LORAMUX_INLINE void RunNextOf(WarpLanes& warp) {
  const std::uint32_t later = warp.runnable & (~std::uint32_t{1} << warp.position);
  warp.position = static_cast<std::uint32_t>(std::countr_zero(later != 0 ? later : warp.runnable));
  place.thread = state->warp_order[state->warp] * 32u + warp.order[warp.position];
  LORAMUX_TSAN_CALL(__tsan_switch_to_fiber(state->Current().tsan, __tsan_switch_to_fiber_no_sync));
}

// Makes the next lane that can go on the running one: of this warp, else of the next warp that has one. False: there is
// none.
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

// Ends the launch, and with it the device. Threads stay where they stand, and so would what their frames own: empties
// `what`.
[[noreturn]] void KernelFault(std::string&& what) {
  *state->fault = "kernel " + std::string(state->launch->kernel.name) + ", block (" + std::to_string(place.block[0]) +
                  ", " + std::to_string(place.block[1]) + ", " + std::to_string(place.block[2]) + "), thread " +
                  std::to_string(place.thread) + ": " + what;
  std::string().swap(what);
  state->failed = true;
  JumpToHost();
  __builtin_unreachable();
}

// Goes on with the running thread, from a fiber that does not.
LORAMUX_INLINE void JumpToCurrent(Context& from) {
  Thread& thread = state->Current();
  if (thread.fiber == nullptr) thread.fiber = TakeFiber();
  state->current = thread.fiber;
  Jump(from, thread.fiber->context);
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

// The running thread cannot go on until others have.
LORAMUX_INLINE void Leave(WarpLanes& warp) {
  Fiber* fiber = state->current;
  warp.runnable &= ~(std::uint32_t{1} << warp.position);
  if (warp.runnable != 0) {
    RunNextOf(warp);
  } else if (!PickNext()) {
    KernelFault(DescribeWaiting());
  }
  JumpToCurrent(fiber->context);
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
      if (state->alive != 0) KernelFault(DescribeWaiting());
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
}

void CheckShared(const void* address, const char* access) {
  const auto* byte = static_cast<const std::byte*>(address);
  if (place.shared == nullptr || byte < place.shared || byte + 16 > place.shared + place.shared_bytes) {
    std::string what = std::string(access) + " at " + Hex(reinterpret_cast<std::uintptr_t>(address)) +
                       ", which is not in the block's " + std::to_string(place.shared_bytes) +
                       " bytes of shared memory";
    KernelFault(std::move(what));
  }
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) {
    std::string what = std::string(access) + " at offset " + std::to_string(byte - place.shared) +
                       " of shared memory, which is not aligned to 16 bytes";
    KernelFault(std::move(what));
  }
}

}  // namespace

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
    if (fiber.memory != nullptr) munmap(fiber.memory, kGuardBytes + kStackBytes);
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

void SyncBlock() {
  LORAMUX_TSAN_CALL(__tsan_release(&state->sync));
  WarpLanes& warp = state->warp_state[place.thread / 32];
  if (++state->at_barrier == state->launch->threads) {
    state->at_barrier = 0;
    for (std::uint32_t w = 0; w < state->warps; ++w) state->warp_state[w].runnable = ~std::uint32_t{0};
  } else {
    Leave(warp);
  }
  LORAMUX_TSAN_CALL(__tsan_acquire(&state->sync));
}

void CopyAsync16(void* shared, const void* global, bool valid) {
  CheckShared(shared, "asynchronous copy to shared memory");
  const void* from = valid ? emulated::CheckAccess(global, 16, Access::kAsyncCopy) : nullptr;
  Thread& thread = state->Current();
  thread.copies.push_back({shared, from, thread.groups});
}

void CopyAsyncCommit() { ++state->Current().groups; }

namespace emulated {

void CopyAsyncWaitFor(int pending_groups) {
  Thread& thread = state->Current();
  std::size_t kept = 0;
  for (const AsyncCopy& copy : thread.copies) {
    if (copy.group >= thread.groups - pending_groups) {
      thread.copies[kept++] = copy;
      continue;
    }
    LORAMUX_TSAN_CALL(if (copy.from != nullptr) __tsan_read16(const_cast<void*>(copy.from)));
    LORAMUX_TSAN_CALL(__tsan_write16(copy.to));
    Vec4 bytes = {0, 0, 0, 0};
    if (copy.from != nullptr) bytes = *static_cast<const Vec4*>(copy.from);
    *static_cast<Vec4*>(copy.to) = bytes;
  }
  thread.copies.resize(kept);
}

const std::uint32_t (*Meet(Meeting meeting, const std::uint32_t* words, int count))[8] {
  WarpLanes& warp = state->warp_state[place.thread / 32];
  Slots slots = warp.slots[warp.phase & 1];
  for (int i = 0; i < count; ++i) slots[place.thread % 32][i] = words[i];
  if (warp.arrived == 0) {
    warp.meeting = meeting;
  } else if (warp.meeting != meeting) {
    std::string what =
        std::string("lanes of a warp meet at different calls: ") + NameOf(warp.meeting) + " and " + NameOf(meeting);
    KernelFault(std::move(what));
  }
  LORAMUX_TSAN_CALL(__tsan_release(&warp.sync));
  if (++warp.arrived == 32) {
    MeetingWork(meeting, slots);
    warp.arrived = 0;
    ++warp.phase;
    warp.runnable = ~std::uint32_t{0};
  } else {
    Leave(warp);
  }
  LORAMUX_TSAN_CALL(__tsan_acquire(&warp.sync));
  return slots;
}

void GatherMatrices(std::uint32_t (&r)[4], const void* shared_row, bool transposed) {
  CheckShared(shared_row, "LoadMatrices");
  LORAMUX_TSAN_CALL(__tsan_read16(const_cast<void*>(shared_row)));
  const auto address = reinterpret_cast<std::uintptr_t>(shared_row);
  const std::uint32_t words[2] = {static_cast<std::uint32_t>(address), static_cast<std::uint32_t>(address >> 32)};
  const auto slots = Meet(transposed ? Meeting::kMatricesTransposed : Meeting::kMatrices, words, 2);
  for (int i = 0; i < 4; ++i) r[i] = slots[place.thread % 32][i];
}

// The shared memory of a block is new: its shadow must not remember the last block's accesses.
std::byte* SharedMemory(std::size_t bytes) {
  if (bytes > place.shared_bytes) {
    std::string what = "the kernel needs " + std::to_string(bytes) + " bytes of shared memory, the launch has " +
                       std::to_string(place.shared_bytes);
    KernelFault(std::move(what));
  }
  if (place.shared != nullptr) return place.shared;
#ifdef LORAMUX_EMULATOR_TSAN
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__), AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  void* shared =
      mmap(state->shared, kMaxSharedBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  CHECK(shared == state->shared);
#endif
  std::memset(state->shared, 0xff, place.shared_bytes);
  LORAMUX_TSAN_CALL((AnnotateIgnoreWritesEnd(__FILE__, __LINE__), AnnotateIgnoreReadsEnd(__FILE__, __LINE__)));
  place.shared = state->shared;
  return place.shared;
}

AddressRange& FindRange(std::uintptr_t address, std::size_t bytes, Access access) {
  const MemoryRegion* region = state->launch->memory->Find(address);
  if (region == nullptr || !state->launch->memory->Contains(address, bytes)) {
    std::string what = std::string(NameOf(access)) + " of " + std::to_string(bytes) + " bytes at " + Hex(address) +
                       ", " + state->launch->memory->DescribeNear(address + (region == nullptr ? 0 : bytes));
    KernelFault(std::move(what));
  }
  AddressRange& range = place.ranges[CachedRange(address)];
  range = {region->begin, region->end, state->launch->memory->counting ? &state->traffic[region->watch] : nullptr};
  return range;
}

void MisalignedAccess(std::uintptr_t address, std::size_t bytes, Access access) {
  std::string what = std::string(NameOf(access)) + " of " + std::to_string(bytes) + " bytes at " + Hex(address) +
                     ", which is not aligned to " + std::to_string(bytes) + " bytes";
  KernelFault(std::move(what));
}

}  // namespace emulated
}  // namespace loramux::gpu
