// The emulated device's memory: its live allocations, and what kernels and copies did to parts of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gpu/emulated/place.h"
#include "memory/arena.h"

namespace loramux::gpu {

using emulated::Traffic;

// Host memory aligned to 256 bytes, content arbitrary. Error (kResourceExhausted): the host has not that much.
Result<std::shared_ptr<std::byte>> HostMemory(std::string_view name, std::int64_t bytes);

// A part of a live allocation: all its bytes count for one watch.
struct MemoryRegion {
  std::uintptr_t begin = 0, end = 0;  // device addresses
  std::uint32_t watch = 0;            // 0: unnamed
  std::string name;                   // name of the allocation
  std::uintptr_t allocation_end = 0;
  std::shared_ptr<std::byte> memory;  // a snapshot keeps memory that is freed meanwhile
};

// The live allocations at one moment, in ascending order. Immutable.
struct MemoryMap {
  std::vector<MemoryRegion> regions;
  std::uint64_t version = 0;  // differs from that of every other map of the process
  std::uint32_t watches = 1;  // how many counters a launch needs
  bool counting = false;
  // The region of the address; null if there is none.
  const MemoryRegion* Find(std::uintptr_t address) const;
  // Whether [address, address + bytes) lies in one live allocation.
  bool Contains(std::uintptr_t address, std::size_t bytes) const;
  // What lies near an address that is in no allocation: for messages.
  std::string DescribeNear(std::uintptr_t address) const;
};

// Thread-safe.
class DeviceMemory {
 public:
  // Bytes of an allocation that start as 0xFF; the rest would cost memory that is never used.
  static constexpr std::int64_t kPoisonBytes = std::int64_t{64} << 20;

  explicit DeviceMemory(std::int64_t limit) : limit_(limit), map_(std::make_shared<MemoryMap>()) {}

  // Error (kResourceExhausted): does not fit.
  Result<std::uintptr_t> Allocate(std::string_view name, std::int64_t bytes);
  // Pinned memory of the host: kernels reach it at its own address. It counts as no device memory.
  void AddPinned(std::string_view name, std::shared_ptr<std::byte> memory, std::int64_t bytes);
  // Either kind. Device memory by its device address.
  void Free(std::uintptr_t address);
  std::int64_t FreeBytes() const;
  std::shared_ptr<const MemoryMap> Map() const;

  // Counts what kernels do to [address, address + bytes) under this name from now on. Parts of one name add up.
  void Watch(std::string_view name, std::uintptr_t address, std::size_t bytes);
  // Adds a launch's counts: one for each watch, and one for the rest.
  void Count(const std::vector<Traffic>& counts);
  Traffic TrafficOf(std::string_view name) const;
  Traffic Total() const;
  // Zeros all counts, and starts counting.
  void ResetTraffic();

 private:
  struct Allocation {
    std::uintptr_t address;
    std::string name;
    std::int64_t bytes;
    std::shared_ptr<std::byte> memory;
  };
  struct WatchedRange {
    std::uintptr_t begin, end;
    std::uint32_t watch;
  };
  void RebuildLocked();

  const std::int64_t limit_;
  mutable std::mutex mutex_;
  std::int64_t used_ = 0;
  bool counting_ = false;
  std::vector<Allocation> allocations_;
  std::vector<WatchedRange> watched_;
  std::vector<std::string> watch_names_{""};
  std::vector<Traffic> traffic_{{}};
  std::shared_ptr<const MemoryMap> map_;
};

}  // namespace loramux::gpu
