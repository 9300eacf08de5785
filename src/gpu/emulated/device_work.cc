#include "gpu/emulated/device_work.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "gpu/emulated/dense_product.h"
#include "gpu/emulated/sanitizers.h"

namespace loramux::gpu {
namespace {

std::uintptr_t AddressOf(const void* device) { return reinterpret_cast<std::uintptr_t>(device); }

template <typename T>
T* HostAddress(T* device) {
  return reinterpret_cast<T*>(AddressOf(device) & ~emulated::kDeviceBit);
}
void* HostAddress(std::uintptr_t device) { return reinterpret_cast<void*>(device & ~emulated::kDeviceBit); }

// A step that visits every block: coprime to their number.
std::uint64_t StrideOf(std::uint64_t blocks, std::uint64_t seed) {
  if (seed == 0 || blocks < 3) return 1;
  std::uint64_t stride = (seed * 0x9e3779b97f4a7c15u >> 32) % blocks;
  while (std::gcd(stride, blocks) != 1) stride = (stride + 1) % blocks;
  return stride;
}

}  // namespace

bool DeviceWork::CheckDevice(const char* what, const MemoryMap& map, const void* address, std::int64_t bytes) {
  {
    const HiddenOrder hidden;  // another thread may have made the map
    if (bytes <= 0 || map.Contains(AddressOf(address), static_cast<std::size_t>(bytes))) return true;
  }
  Lose(std::string(what) + " of " + std::to_string(bytes) + " bytes of device memory, " +
       map.DescribeNear(AddressOf(address)));
  return false;
}

bool DeviceWork::CheckPinned(const char* what, const void* host, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(host);
  {
    const HiddenOrder hidden;
    const std::lock_guard lock(mutex_);
    for (const auto& [base, size] : pinned_) {
      if (begin >= base && begin + bytes <= base + size) return true;
    }
  }
  Lose(std::string(what) + ": the host's " + std::to_string(bytes) + " bytes are not pinned memory");
  return false;
}

void DeviceWork::CopyToDevice(std::uintptr_t device, const void* host, std::size_t bytes) {
  if (lost_ || bytes == 0) return;
  const auto map = memory.Map();
  if (fail_copy.Now()) return Lose("injected failure of a copy");
  if (!CheckDevice("copy to the device", *map, reinterpret_cast<void*>(device), static_cast<std::int64_t>(bytes)))
    return;
  if (!CheckPinned("copy to the device", host, bytes)) return;
  std::memcpy(HostAddress(device), host, bytes);
}

void DeviceWork::CopyToHost(void* host, std::uintptr_t device, std::size_t bytes) {
  if (lost_ || bytes == 0) return;
  const auto map = memory.Map();
  if (fail_copy.Now()) return Lose("injected failure of a copy");
  if (!CheckDevice("copy to the host", *map, reinterpret_cast<void*>(device), static_cast<std::int64_t>(bytes))) return;
  if (!CheckPinned("copy to the host", host, bytes)) return;
  std::memcpy(host, HostAddress(device), bytes);
}

void DeviceWork::Fill(std::uintptr_t device, std::uint8_t byte, std::size_t bytes) {
  if (lost_ || bytes == 0) return;
  const auto map = memory.Map();
  if (!CheckDevice("fill", *map, reinterpret_cast<void*>(device), static_cast<std::int64_t>(bytes))) return;
  std::memset(HostAddress(device), byte, bytes);
}

// What a launch asks for that no device has.
std::optional<std::string> DeviceWork::FaultOf(const EnqueuedLaunch& launch) const {
  const std::string name = "launch of kernel " + std::string(launch.kernel.name) + ": ";
  if (launch.kernel.run == nullptr) return "launch of a kernel that does not exist, or not for this type";
  if (launch.threads == 0 || launch.threads % 32 != 0 || launch.threads > 1024 ||
      launch.threads > launch.kernel.max_threads) {
    return name + std::to_string(launch.threads) + " threads a block; the kernel allows multiples of 32 up to " +
           std::to_string(launch.kernel.max_threads);
  }
  const GridSize& grid = launch.grid;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
    return name + "a grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
           std::to_string(grid.z) + " blocks";
  }
  if (launch.shared_bytes > max_shared_bytes_) {
    return name + std::to_string(launch.shared_bytes) + " bytes of shared memory; a block has at most " +
           std::to_string(max_shared_bytes_);
  }
  if (launch.argument_bytes != launch.kernel.argument_bytes) {
    return name + std::to_string(launch.argument_bytes) + " bytes of arguments; the kernel has " +
           std::to_string(launch.kernel.argument_bytes);
  }
  return std::nullopt;
}

void DeviceWork::Launch(const EnqueuedLaunch& launch) {
  if (lost_) return;
  if (lose_at_launch.Now()) return Lose("injected loss of the device");
  if (const auto fault = FaultOf(launch)) return Lose(*fault);
  const auto map = memory.Map();
  const bool counting = [&] {
    const HiddenOrder hidden;
    return map->counting;
  }();
  const BlockLaunch blocks{
      launch.kernel, launch.arguments.data(), launch.grid, launch.threads, launch.shared_bytes, seed_, map.get()};
  const std::uint64_t count = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  const std::uint64_t stride = StrideOf(count, seed_), start = seed_ % count;
  BlockRunner::Start(blocks);
  pool_.Run(
      count,
      [&](std::uint64_t i) {
        BlockRunner& runner = BlockRunner::OfThisThread();
        if (runner.Run(blocks, (start + i * stride) % count)) return true;
        Lose(runner.fault());
        return false;
      },
      [&] {
        const std::vector<Traffic> counts = BlockRunner::OfThisThread().Leave(blocks);
        if (counting) memory.Count(counts);
      });
}

void DeviceWork::Multiply(const DenseProduct& product) {
  if (lost_ || product.m == 0 || product.n == 0) return;
  const auto map = memory.Map();
  const auto element = static_cast<std::int64_t>(DTypeSize(product.dtype));
  const char* what = "dense product";
  if (!CheckDevice(what, *map, product.x, ((product.m - 1) * product.x_stride + product.k) * element)) return;
  if (!CheckDevice(what, *map, product.w, product.n * product.k * element)) return;
  if (product.bias != nullptr && !CheckDevice(what, *map, product.bias, product.n * 4)) return;
  if (!CheckDevice(what, *map, product.y, ((product.m - 1) * product.y_stride + product.n) * 4)) return;
  DenseProduct host = product;
  host.x = HostAddress(product.x);
  host.w = HostAddress(product.w);
  host.bias = HostAddress(product.bias);
  host.y = HostAddress(product.y);
  const std::vector<float> x = WidenRows(host);
  pool_.Run(
      static_cast<std::uint64_t>((product.n + kDenseOutputs - 1) / kDenseOutputs),
      [&](std::uint64_t i) {
        MultiplyOutputs(host, x.data(), static_cast<std::int64_t>(i) * kDenseOutputs);
        return true;
      },
      [] {});
}

void DeviceWork::Lose(std::string why) {
  const std::lock_guard lock(mutex_);
  if (lost_) return;
  why_ = std::move(why);
  lost_ = true;
}

Status DeviceWork::status() const {
  if (!lost_) return Ok{};
  const std::lock_guard lock(mutex_);
  return Unavailable("the device is lost: " + why_);
}

void DeviceWork::AddPinned(const void* base, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  pinned_.emplace_back(static_cast<const std::byte*>(base), static_cast<std::size_t>(bytes));
}

void DeviceWork::RemovePinned(const void* base) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pinned_, [&](const auto& range) { return range.first == base; });
}

}  // namespace loramux::gpu
