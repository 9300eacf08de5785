// Where the running thread of the emulated device is, and which device memory it may touch. One object for each thread
// of the operating system: the runner sets it whenever it goes on with another CUDA thread.
#pragma once

#include <cstddef>
#include <cstdint>

// Kernels are compiled for ThreadSanitizer; the emulation of what is no memory to a kernel is not.
#if defined(__SANITIZE_THREAD__)
#define LORAMUX_EMULATION __attribute__((no_sanitize("thread")))
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LORAMUX_EMULATION __attribute__((no_sanitize("thread")))
#endif
#endif
#ifndef LORAMUX_EMULATION
#define LORAMUX_EMULATION
#endif

namespace loramux::gpu::emulated {

// A device address is the address of the emulating host memory with this bit set. No processor maps such addresses, so
// host code and kernels that touch device memory directly end at once.
inline constexpr std::uintptr_t kDeviceBit = std::uintptr_t{1} << 54;

// What kernels read and wrote.
struct Traffic {
  std::int64_t loads = 0, load_bytes = 0, store_bytes = 0;
};

// Device addresses [begin, end) of one live allocation, and where to count accesses (null: they are not counted).
struct AddressRange {
  std::uintptr_t begin = 1, end = 0;
  Traffic* traffic = nullptr;
};

// The ranges that were used last, by the page of the address.
inline constexpr std::size_t kCachedRanges = 256;  // as many as CachedRange has values

struct Place {
  std::uint32_t thread = 0, block_threads = 0;
  std::uint32_t block[3] = {}, grid[3] = {};
  std::byte* shared = nullptr;  // null: not yet used by this block
  std::size_t shared_bytes = 0;
  AddressRange ranges[kCachedRanges];
};

inline constinit thread_local Place place;

// Allocations often begin at the same offset within huge pages: mixes the upper bits in.
inline std::size_t CachedRange(std::uintptr_t address) { return ((address >> 12) * 0x9e3779b97f4a7c15u) >> 56; }

enum class Access : std::uint8_t { kLoad, kStore, kAsyncCopy };

// Looks the address up in the launch's memory and caches its range. Ends the launch if it lies in none.
AddressRange& FindRange(std::uintptr_t address, std::size_t bytes, Access access);
// Ends the launch.
[[noreturn]] void MisalignedAccess(std::uintptr_t address, std::size_t bytes, Access access);

// The host address of `bytes` bytes at a device address, after all checks. `bytes` is a power of two.
LORAMUX_EMULATION inline void* CheckAccess(const void* device, std::size_t bytes, Access access) {
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(device);
  AddressRange* range = &place.ranges[CachedRange(address)];
  if (address < range->begin || address + bytes > range->end) [[unlikely]]
    range = &FindRange(address, bytes, access);
  if ((address & (bytes - 1)) != 0) [[unlikely]]
    MisalignedAccess(address, bytes, access);
  if (range->traffic != nullptr) [[unlikely]] {
    range->traffic->loads += access != Access::kStore;
    (access == Access::kStore ? range->traffic->store_bytes : range->traffic->load_bytes) +=
        static_cast<std::int64_t>(bytes);
  }
  return reinterpret_cast<void*>(address & ~kDeviceBit);
}

}  // namespace loramux::gpu::emulated
