// The emulated device: the processor plays a GPU. It runs the same kernel sources, catches what hardware lets pass
// (kernel_api_emulated.h), counts the bytes that kernels touch, and fails when told to.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "gpu/device.h"
#include "gpu/emulated/device_work.h"
#include "gpu/emulated/emulated_kernels.h"

namespace loramux::gpu {

struct EmulatedDeviceOptions {
  std::int64_t memory = std::int64_t{4} << 30;           // bytes
  std::uint64_t seed = 1;                                // order of lanes, warps and blocks; 0: ascending
  int threads = 0;                                       // threads that run blocks; 0: one a processor, at most 8
  std::uint32_t pause_one_in = 0;                        // a stream sleeps before one of so many operations; 0: never
  std::size_t max_shared_bytes = std::size_t{99} << 10;  // most shared memory of a block, in bytes
  bool batch_invariant = false;                          // what properties() says
};

class EmulatedDevice final : public Device {
 public:
  explicit EmulatedDevice(const EmulatedDeviceOptions& options);

  const DeviceProperties& properties() const override { return properties_; }
  std::int64_t FreeMemory() const override { return work_.memory.FreeBytes(); }
  Result<std::unique_ptr<Arena>> Allocate(std::string_view name, std::int64_t bytes) override;
  Result<std::unique_ptr<Arena>> AllocatePinned(std::string_view name, std::int64_t bytes) override;
  Result<std::unique_ptr<DeviceStream>> CreateStream() override;
  std::unique_ptr<DeviceEvent> CreateEvent() override;
  Result<bool> IsDone(const DeviceEvent& event) override;
  Status status() const override { return work_.status(); }

  // Launches a kernel that no list names.
  template <typename KernelStruct>
  void LaunchKernel(DeviceStream& stream, std::string_view name, GridSize grid, std::uint32_t threads,
                    std::size_t shared_bytes, const typename KernelStruct::Arguments& arguments) {
    LaunchKernel(stream, EmulatedKernelOf<KernelStruct>(name),
                 {Kernel::kCount, DType::kF32, grid, threads, shared_bytes, &arguments, sizeof(arguments)});
  }
  void LaunchKernel(DeviceStream& stream, const EmulatedKernel& kernel, const KernelLaunch& launch);

  // Counts what kernels do to these bytes of device memory under this name from now on; parts of one name add up, and
  // freed parts drop out. REQUIRES: they lie in one allocation.
  void Watch(std::string_view name, const void* base, std::size_t bytes);
  // REQUIRES: Watch has been called with this name.
  Traffic TrafficOf(std::string_view name) const { return work_.memory.TrafficOf(name); }
  // Traffic of all memory since the first Watch or ResetTraffic.
  Traffic Total() const { return work_.memory.Total(); }
  void ResetTraffic() { work_.memory.ResetTraffic(); }

  // After so many successes one allocation fails (of device or pinned memory), a copy fails, which loses the device, or
  // a launch loses it.
  void FailAllocationAfter(std::int64_t allocations) { work_.fail_allocation.After(allocations); }
  void FailCopyAfter(std::int64_t copies) { work_.fail_copy.After(copies); }
  void LoseAfter(std::int64_t launches) { work_.lose_at_launch.After(launches); }

 private:
  const EmulatedDeviceOptions options_;
  DeviceProperties properties_;
  DeviceWork work_;
  std::atomic<std::uint64_t> streams_{0};
};

std::unique_ptr<EmulatedDevice> MakeEmulatedDevice(const EmulatedDeviceOptions& options);

}  // namespace loramux::gpu
