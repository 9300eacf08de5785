#include "gpu/emulated/emulated_device.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "gpu/emulated/emulated_stream.h"

namespace loramux::gpu {
namespace {

class DeviceArena final : public Arena {
 public:
  DeviceArena(DeviceMemory& memory, std::uintptr_t address, std::int64_t bytes)
      : memory_(memory), address_(address), bytes_(bytes) {}
  ~DeviceArena() override { memory_.Free(address_); }
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;
  MemoryKind kind() const override { return MemoryKind::kDevice; }
  std::byte* base() const override { return reinterpret_cast<std::byte*>(address_); }
  std::int64_t size() const override { return bytes_; }

 private:
  DeviceMemory& memory_;
  const std::uintptr_t address_;
  const std::int64_t bytes_;
};

class PinnedArena final : public Arena {
 public:
  PinnedArena(DeviceWork& work, std::string_view name, std::shared_ptr<std::byte> memory, std::int64_t bytes)
      : work_(work), memory_(std::move(memory)), bytes_(bytes) {
    work_.AddPinned(base(), size());
    work_.memory.AddPinned(name, memory_, size());
  }
  ~PinnedArena() override {
    work_.memory.Free(reinterpret_cast<std::uintptr_t>(base()));
    work_.RemovePinned(base());
  }
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;
  MemoryKind kind() const override { return MemoryKind::kPinned; }
  std::byte* base() const override { return memory_.get(); }
  std::int64_t size() const override { return bytes_; }

 private:
  DeviceWork& work_;
  const std::shared_ptr<std::byte> memory_;
  const std::int64_t bytes_;
};

int ThreadsOf(const EmulatedDeviceOptions& options) {
  if (options.threads > 0) return options.threads;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8);
}

Error InjectedAllocationFailure(std::string_view name) {
  return ResourceExhausted(std::string(name) + ": injected failure of an allocation");
}

}  // namespace

EmulatedDevice::EmulatedDevice(const EmulatedDeviceOptions& options)
    : options_(options), work_(options.memory, options.seed, ThreadsOf(options), options.max_shared_bytes) {
  properties_.name = "emulated";
  properties_.memory = options.memory;
  properties_.multiprocessors = 8;
  properties_.batch_invariant = options.batch_invariant;
  properties_.l2_bytes = std::int64_t{4} << 20;
}

Result<std::unique_ptr<Arena>> EmulatedDevice::Allocate(std::string_view name, std::int64_t bytes) {
  RETURN_IF_ERROR(status());
  if (work_.fail_allocation.Now()) return InjectedAllocationFailure(name);
  ASSIGN_OR_RETURN(const std::uintptr_t address, work_.memory.Allocate(name, bytes));
  return std::unique_ptr<Arena>(std::make_unique<DeviceArena>(work_.memory, address, bytes));
}

Result<std::unique_ptr<Arena>> EmulatedDevice::AllocatePinned(std::string_view name, std::int64_t bytes) {
  RETURN_IF_ERROR(status());
  if (work_.fail_allocation.Now()) return InjectedAllocationFailure(name);
  ASSIGN_OR_RETURN(std::shared_ptr<std::byte> memory, HostMemory(name, bytes));
  return std::unique_ptr<Arena>(std::make_unique<PinnedArena>(work_, name, std::move(memory), bytes));
}

Result<std::unique_ptr<DeviceStream>> EmulatedDevice::CreateStream() {
  RETURN_IF_ERROR(status());
  const std::uint64_t seed = options_.seed + ++streams_;
  return std::unique_ptr<DeviceStream>(std::make_unique<EmulatedStream>(work_, seed, options_.pause_one_in));
}

std::unique_ptr<DeviceEvent> EmulatedDevice::CreateEvent() { return std::make_unique<EmulatedEvent>(); }

Result<bool> EmulatedDevice::IsDone(const DeviceEvent& event) {
  RETURN_IF_ERROR(status());
  return static_cast<const EmulatedEvent&>(event).IsDone();
}

void EmulatedDevice::LaunchKernel(DeviceStream& stream, const EmulatedKernel& kernel, const KernelLaunch& launch) {
  static_cast<EmulatedStream&>(stream).LaunchKernel(kernel, launch);
}

void EmulatedDevice::Watch(std::string_view name, const void* base, std::size_t bytes) {
  work_.memory.Watch(name, reinterpret_cast<std::uintptr_t>(base), bytes);
}

std::unique_ptr<EmulatedDevice> MakeEmulatedDevice(const EmulatedDeviceOptions& options) {
  return std::make_unique<EmulatedDevice>(options);
}

}  // namespace loramux::gpu
