// An NVIDIA GPU as a Device, over the CUDA runtime and cuBLASLt.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include <cuda_runtime_api.h>

#include "gpu/cuda/dense_products.h"
#include "gpu/cuda/kernel_entry.h"
#include "gpu/device.h"
#include "gpu/open_device.h"

namespace loramux::gpu {

// "cudaErrorNoDevice: no CUDA-capable device is detected".
std::string DescribeCudaError(cudaError_t error);

// Thread-safe. Every method first makes the GPU the calling thread's own.
class CudaDevice final : public Device {
 public:
  // Errors: see CudaPlugin::open.
  static Result<std::unique_ptr<Device>> Open(const OpenDeviceOptions& options);
  ~CudaDevice() override;

  const DeviceProperties& properties() const override { return properties_; }
  std::int64_t FreeMemory() const override;
  Result<std::unique_ptr<Arena>> Allocate(std::string_view name, std::int64_t bytes) override;
  Result<std::unique_ptr<Arena>> AllocatePinned(std::string_view name, std::int64_t bytes) override;
  Result<std::unique_ptr<DeviceStream>> CreateStream() override;
  std::unique_ptr<DeviceEvent> CreateEvent() override;
  Result<bool> IsDone(const DeviceEvent& event) override;
  Status status() const override;

  // --- for streams ---
  // Makes the GPU the calling thread's; false if the device is lost, and nothing may be enqueued.
  bool Enter() const;
  // Whether `error` is success; if not, the device is lost, and the first such error is kept. `what` says what failed.
  bool Succeeded(cudaError_t error, const char* what);
  void Lose(std::string message);
  // The instance. REQUIRES: the backend has it.
  const KernelEntry& EntryOf(Kernel kernel, DType dtype) const;
  DenseProducts& dense() { return *dense_; }

 private:
  explicit CudaDevice(int index) : index_(index) {}
  Status ReadProperties();
  // Loads every kernel now, so that a missing one is an error of the start, and lets each use all shared memory.
  Status LoadKernels();

  const int index_;
  DeviceProperties properties_;
  std::array<std::array<KernelEntry, 3>, kNumKernels> entries_{};  // by kernel, then f32, bf16, f16
  std::unique_ptr<DenseProducts> dense_;
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;
  std::string why_lost_;  // guarded by mutex_
};

}  // namespace loramux::gpu
