// What kernel_api.h offers and is more than a few instructions.
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <sys/mman.h>

#include "base/check.h"
#include "base/clock.h"
#include "gpu/emulated/block_state.h"
#include "gpu/emulated/warp_math.h"
#include "gpu/kernel_api.h"

namespace loramux::gpu {
namespace {

using emulated::Access;
using emulated::place;

std::string Hex(std::uintptr_t address) {
  std::string text;
  for (; address != 0; address >>= 4) text.insert(text.begin(), "0123456789abcdef"[address & 15]);
  return "0x" + text;
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

void SyncBlock() {
  LORAMUX_TSAN_CALL(__tsan_release(state->SyncOfBlock()));
  WarpLanes& warp = state->warp_state[place.thread / 32];
  if (++state->at_barrier == state->launch->threads) {
    state->at_barrier = 0;
    for (std::uint32_t w = 0; w < state->warps; ++w) state->warp_state[w].runnable = ~std::uint32_t{0};
  } else {
    Leave(warp);
  }
  LORAMUX_TSAN_CALL(__tsan_acquire(state->SyncOfBlock()));
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
  LORAMUX_TSAN_CALL(__tsan_release(state->SyncOfWarp()));
  if (++warp.arrived == 32) {
    MeetingWork(meeting, slots);
    warp.arrived = 0;
    ++warp.phase;
    warp.runnable = ~std::uint32_t{0};
  } else {
    Leave(warp);
  }
  LORAMUX_TSAN_CALL(__tsan_acquire(state->SyncOfWarp()));
  return slots;
}

std::int64_t Nanoseconds() { return OsClock().Now(); }
void LetOthersRun() { std::this_thread::yield(); }

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

static const char* NameOf(Access access) {
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
