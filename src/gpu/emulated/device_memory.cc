#include "gpu/emulated/device_memory.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "gpu/emulated/sanitizers.h"

namespace loramux::gpu {
namespace {

// Large blocks come from the system and go back to it; small ones are cheaper from the heap.
constexpr std::int64_t kLargeBytes = std::int64_t{1} << 20;
constexpr std::size_t kAlignment = 256;

// Tells maps apart, also those of different devices.
std::uint64_t NextVersion() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

Result<std::shared_ptr<std::byte>> HostMemory(std::string_view name, std::int64_t bytes) {
  if (bytes < kLargeBytes) {
    // One unit more than needed, so that no two allocations touch.
    const std::size_t rounded = (static_cast<std::size_t>(bytes) / kAlignment + 2) * kAlignment;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
    if (memory == nullptr) return ResourceExhausted(std::string(name) + ": the host has no memory left");
    return std::shared_ptr<std::byte>(memory, [](std::byte* p) { std::free(p); });
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Arena> mapped, MapHostArena(name, bytes));
  std::byte* memory = mapped->base();
  return std::shared_ptr<std::byte>(std::shared_ptr<Arena>(std::move(mapped)), memory);
}

// A map may be younger than the launch that reads it.
const MemoryRegion* MemoryMap::Find(std::uintptr_t address) const {
  const HiddenOrder hidden;
  const auto after = std::upper_bound(regions.begin(), regions.end(), address,
                                      [](std::uintptr_t a, const MemoryRegion& region) { return a < region.begin; });
  if (after == regions.begin() || address >= std::prev(after)->end) return nullptr;
  return &*std::prev(after);
}

bool MemoryMap::Contains(std::uintptr_t address, std::size_t bytes) const {
  const HiddenOrder hidden;
  const MemoryRegion* region = Find(address);
  if (region == nullptr) return false;
  return bytes <= region->allocation_end - address;
}

std::string MemoryMap::DescribeNear(std::uintptr_t address) const {
  if ((address & emulated::kDeviceBit) == 0) return "which is neither a device address nor pinned memory";
  const MemoryRegion* nearest = nullptr;
  std::uintptr_t distance = 0;
  for (const MemoryRegion& region : regions) {
    if ((region.begin & emulated::kDeviceBit) == 0) continue;
    const std::uintptr_t away = address < region.begin ? region.begin - address : address - region.end;
    if (nearest == nullptr || away < distance) nearest = &region, distance = away;
  }
  if (nearest == nullptr) return "and nothing is allocated";
  return std::to_string(distance) + " bytes " + (address < nearest->begin ? "before" : "past the end of") +
         " allocation \"" + nearest->name + "\"";
}

Result<std::uintptr_t> DeviceMemory::Allocate(std::string_view name, std::int64_t bytes) {
  CHECK_GT(bytes, 0);
  {
    const std::lock_guard lock(mutex_);
    if (bytes > limit_ - used_) {
      return ResourceExhausted(std::string(name) + ": " + std::to_string(bytes) +
                               " bytes of device memory asked for, " + std::to_string(limit_ - used_) + " free");
    }
    used_ += bytes;
  }
  Result<std::shared_ptr<std::byte>> memory = HostMemory(name, bytes);
  if (!memory.ok()) {
    const std::lock_guard lock(mutex_);
    used_ -= bytes;
    return std::move(memory).error();
  }
  std::memset(memory->get(), 0xff, static_cast<std::size_t>(std::min(bytes, kPoisonBytes)));
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(memory->get()) | emulated::kDeviceBit;
  const std::lock_guard lock(mutex_);
  allocations_.push_back({address, std::string(name), bytes, std::move(memory).value()});
  RebuildLocked();
  return address;
}

void DeviceMemory::AddPinned(std::string_view name, std::shared_ptr<std::byte> memory, std::int64_t bytes) {
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(memory.get());
  const std::lock_guard lock(mutex_);
  allocations_.push_back({address, std::string(name), bytes, std::move(memory)});
  RebuildLocked();
}

void DeviceMemory::Free(std::uintptr_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(allocations_.begin(), allocations_.end(),
                                  [&](const Allocation& allocation) { return allocation.address == address; });
  CHECK(found != allocations_.end());
  const std::uintptr_t end = address + static_cast<std::uintptr_t>(found->bytes);
  std::erase_if(watched_, [&](const WatchedRange& range) { return range.begin >= address && range.end <= end; });
  if ((address & emulated::kDeviceBit) != 0) used_ -= found->bytes;
  allocations_.erase(found);
  RebuildLocked();
}

std::int64_t DeviceMemory::FreeBytes() const {
  const std::lock_guard lock(mutex_);
  return limit_ - used_;
}

std::shared_ptr<const MemoryMap> DeviceMemory::Map() const {
  const HiddenOrder hidden;
  const std::lock_guard lock(mutex_);
  return map_;
}

void DeviceMemory::Watch(std::string_view name, std::uintptr_t address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  CHECK(map_->Contains(address, bytes));
  const auto found = std::find(watch_names_.begin(), watch_names_.end(), name);
  const auto watch = static_cast<std::uint32_t>(found - watch_names_.begin());
  if (found == watch_names_.end()) {
    watch_names_.emplace_back(name);
    traffic_.emplace_back();
  }
  watched_.push_back({address, address + bytes, watch});
  counting_ = true;
  RebuildLocked();
}

void DeviceMemory::Count(const std::vector<Traffic>& counts) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    traffic_[i].loads += counts[i].loads;
    traffic_[i].load_bytes += counts[i].load_bytes;
    traffic_[i].store_bytes += counts[i].store_bytes;
  }
}

Traffic DeviceMemory::TrafficOf(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::find(watch_names_.begin(), watch_names_.end(), name);
  CHECK(found != watch_names_.end());
  return traffic_[static_cast<std::size_t>(found - watch_names_.begin())];
}

Traffic DeviceMemory::Total() const {
  const std::lock_guard lock(mutex_);
  Traffic total;
  for (const Traffic& traffic : traffic_) {
    total.loads += traffic.loads;
    total.load_bytes += traffic.load_bytes;
    total.store_bytes += traffic.store_bytes;
  }
  return total;
}

void DeviceMemory::ResetTraffic() {
  const std::lock_guard lock(mutex_);
  std::fill(traffic_.begin(), traffic_.end(), Traffic{});
  counting_ = true;
  RebuildLocked();
}

// Cuts every allocation where a watched range begins or ends. Where ranges overlap, the latest Watch counts.
void DeviceMemory::RebuildLocked() {
  auto map = std::make_shared<MemoryMap>();
  map->version = NextVersion();
  map->watches = static_cast<std::uint32_t>(watch_names_.size());
  map->counting = counting_;
  for (const Allocation& allocation : allocations_) {
    const std::uintptr_t end = allocation.address + static_cast<std::uintptr_t>(allocation.bytes);
    std::vector<std::uintptr_t> cuts = {allocation.address, end};
    for (const WatchedRange& range : watched_) {
      for (const std::uintptr_t cut : {range.begin, range.end}) {
        if (cut > allocation.address && cut < end) cuts.push_back(cut);
      }
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      MemoryRegion region{cuts[i], cuts[i + 1], 0, allocation.name, end, allocation.memory};
      for (const WatchedRange& range : watched_) {
        if (range.begin <= region.begin && region.end <= range.end) region.watch = range.watch;
      }
      map->regions.push_back(std::move(region));
    }
  }
  std::sort(map->regions.begin(), map->regions.end(),
            [](const MemoryRegion& a, const MemoryRegion& b) { return a.begin < b.begin; });
  map_ = std::move(map);
}

}  // namespace loramux::gpu
