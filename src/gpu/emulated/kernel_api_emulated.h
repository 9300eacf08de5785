// The emulated side of kernel_api.h. Every CUDA thread is a fiber (block_runner.h). Stricter than hardware: shared
// memory starts as NaN, lanes and blocks run in a seeded random order, asynchronous copies land only at their wait, a
// meeting that not all threads reach ends the launch, and every access to global memory must lie in one live
// allocation.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "formats/dtype.h"
#include "gpu/emulated/numbers.h"
#include "gpu/emulated/place.h"
#include "gpu/kernel_api.h"

#define LORAMUX_DEVICE inline
#define LORAMUX_UNROLL

namespace loramux::gpu {

template <typename T>
inline T NoEarlier(T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  return value;
}

inline std::uint32_t ThreadIndex() { return emulated::place.thread; }
inline std::uint32_t BlockThreads() { return emulated::place.block_threads; }
inline std::uint32_t Lane() { return emulated::place.thread % 32; }
inline std::uint32_t Warp() { return emulated::place.thread / 32; }
inline std::uint32_t BlockX() { return emulated::place.block[0]; }
inline std::uint32_t BlockY() { return emulated::place.block[1]; }
inline std::uint32_t BlockZ() { return emulated::place.block[2]; }
inline std::uint32_t GridX() { return emulated::place.grid[0]; }
inline std::uint32_t GridY() { return emulated::place.grid[1]; }
inline std::uint32_t GridZ() { return emulated::place.grid[2]; }

namespace emulated {

// Meetings of a warp; lanes that meet at different ones end the launch.
enum class Meeting : std::uint8_t {
  kNone,
  kBlock,
  kWarp,
  kShuffle,
  kSum,
  kMax,
  kSumDouble,
  kSumInteger,
  kMaxWide,
  kMultiplyBf16,
  kMultiplyHalf,
  kMatrices,
  kMatricesTransposed
};

// What the lanes of a warp bring to a meeting and take from it.
using Slots = std::uint32_t (*)[8];  // [32 lanes][words]

// Waits until all lanes are here with their `count` words; the last one does the meeting's work for all.
const std::uint32_t (*Meet(Meeting meeting, const std::uint32_t* words, int count))[8];
// The block's shared memory, poisoned at its first use.
std::byte* SharedMemory(std::size_t bytes);
// The rows of LoadMatrices.
void GatherMatrices(std::uint32_t (&r)[4], const void* shared_row, bool transposed);
void CopyAsyncWaitFor(int pending_groups);
// Time since some moment. The processor may go on with another thread of the operating system.
std::int64_t Nanoseconds();
void LetOthersRun();

// The bits of a value that lanes exchange.
inline std::uint32_t ToWord(float value) { return AsBits(value); }
inline std::uint32_t ToWord(std::int32_t value) { return static_cast<std::uint32_t>(value); }
inline std::uint32_t ToWord(std::uint32_t value) { return value; }
template <typename T>
inline T FromWord(std::uint32_t word) {
  return std::bit_cast<T>(word);
}
// Two words.
struct WideWords {
  std::uint32_t words[2];
};
template <typename T>
inline T FromWords(const std::uint32_t* words) {
  return std::bit_cast<T>(WideWords{{words[0], words[1]}});
}

}  // namespace emulated

void SyncBlock();
inline void SyncWarp() { emulated::Meet(emulated::Meeting::kWarp, nullptr, 0); }
// The value of `lane` (modulo 32).
template <typename T>
LORAMUX_EMULATION inline T Shuffle(T value, std::uint32_t lane) {
  if constexpr (sizeof(T) == 8) {
    const auto wide = std::bit_cast<emulated::WideWords>(value);
    return emulated::FromWords<T>(emulated::Meet(emulated::Meeting::kShuffle, wide.words, 2)[lane % 32]);
  } else {
    const std::uint32_t word = emulated::ToWord(value);
    return emulated::FromWord<T>(emulated::Meet(emulated::Meeting::kShuffle, &word, 1)[lane % 32][0]);
  }
}
template <typename T>
LORAMUX_EMULATION inline T ShuffleXor(T value, std::uint32_t mask) {
  return Shuffle(value, Lane() ^ mask);
}
LORAMUX_EMULATION inline float SumWarp(float value) {
  const std::uint32_t word = AsBits(value);
  return AsFloat(emulated::Meet(emulated::Meeting::kSum, &word, 1)[0][0]);
}
LORAMUX_EMULATION inline float MaxWarp(float value) {
  const std::uint32_t word = AsBits(value);
  return AsFloat(emulated::Meet(emulated::Meeting::kMax, &word, 1)[0][0]);
}
LORAMUX_EMULATION inline double SumWarp(double value) {
  const auto wide = std::bit_cast<emulated::WideWords>(value);
  return emulated::FromWords<double>(emulated::Meet(emulated::Meeting::kSumDouble, wide.words, 2)[0]);
}
LORAMUX_EMULATION inline std::uint32_t SumWarp(std::uint32_t value) {
  return emulated::Meet(emulated::Meeting::kSumInteger, &value, 1)[0][0];
}
LORAMUX_EMULATION inline std::uint64_t MaxWarp(std::uint64_t value) {
  const auto wide = std::bit_cast<emulated::WideWords>(value);
  return emulated::FromWords<std::uint64_t>(emulated::Meet(emulated::Meeting::kMaxWide, wide.words, 2)[0]);
}

template <typename T>
inline T& Shared() {
  return *reinterpret_cast<T*>(emulated::SharedMemory(sizeof(T)));
}
inline std::uint32_t AtomicAddShared(std::uint32_t* address, std::uint32_t value) {
  return std::atomic_ref(*address).fetch_add(value, std::memory_order_relaxed);
}
inline void AtomicOrShared(std::uint32_t* address, std::uint32_t value) {
  std::atomic_ref(*address).fetch_or(value, std::memory_order_relaxed);
}

template <typename T>
inline T Load(const T* address) {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  return *static_cast<const T*>(emulated::CheckAccess(address, sizeof(T), emulated::Access::kLoad));
}
template <typename T>
inline T LoadOnce(const T* address) {
  return Load(address);
}
template <typename T>
inline void Store(T* address, const std::type_identity_t<T>& value) {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  *static_cast<T*>(emulated::CheckAccess(address, sizeof(T), emulated::Access::kStore)) = value;
}

inline std::uint32_t LoadFlag(const std::uint32_t* flag) {
  auto* word = static_cast<std::uint32_t*>(emulated::CheckAccess(flag, sizeof(*flag), emulated::Access::kLoad));
  return std::atomic_ref(*word).load(std::memory_order_acquire);
}
inline void StoreFlag(std::uint32_t* flag, std::uint32_t value) {
  auto* word = static_cast<std::uint32_t*>(emulated::CheckAccess(flag, sizeof(*flag), emulated::Access::kStore));
  std::atomic_ref(*word).store(value, std::memory_order_release);
}
inline bool WaitFlag(const std::uint32_t* flag, std::uint32_t value, std::uint32_t mask, std::int64_t timeout_ns) {
  const std::int64_t begin = emulated::Nanoseconds();
  while ((LoadFlag(flag) & mask) != value) {
    if (emulated::Nanoseconds() - begin > timeout_ns) return (LoadFlag(flag) & mask) == value;
    emulated::LetOthersRun();
  }
  return true;
}

void CopyAsync16(void* shared, const void* global, bool valid);
void CopyAsyncCommit();
template <int kPendingGroups>
inline void CopyAsyncWait() {
  emulated::CopyAsyncWaitFor(kPendingGroups);
}

template <typename T>
LORAMUX_EMULATION inline void MultiplyTile(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                           std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  static_assert(std::is_same_v<T, Bf16> || std::is_same_v<T, Half>);
  const std::uint32_t words[6] = {a0, a1, a2, a3, b0, b1};
  const auto product = emulated::Meet(
      std::is_same_v<T, Bf16> ? emulated::Meeting::kMultiplyBf16 : emulated::Meeting::kMultiplyHalf, words, 6)[Lane()];
  for (int i = 0; i < 4; ++i) d[i] += AsFloat(product[i]);
}
inline void LoadMatrices(std::uint32_t (&r)[4], const void* shared_row) {
  emulated::GatherMatrices(r, shared_row, false);
}
inline void LoadMatricesTransposed(std::uint32_t (&r)[4], const void* shared_row) {
  emulated::GatherMatrices(r, shared_row, true);
}

inline void StoreAs(DType dtype, void* base, std::int64_t index, float value) {
  if (dtype == DType::kF32) {
    Store(static_cast<float*>(base) + index, value);
  } else if (dtype == DType::kBF16) {
    Store(static_cast<Bf16*>(base) + index, FromFloat<Bf16>(value));
  } else {
    Store(static_cast<Half*>(base) + index, FromFloat<Half>(value));
  }
}

}  // namespace loramux::gpu
