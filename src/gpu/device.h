// A device that computes: a GPU, or the emulation of one. A seam: CudaDevice (cuda/, in a plugin) drives NVIDIA's
// runtime; EmulatedDevice (emulated/) runs the same kernel sources on the processor.
//
// Work is enqueued on streams and done later, in the order of each stream; streams are ordered by events alone. A
// failure of enqueued work is final: the device is lost, every later call does nothing, and Synchronize, IsDone and
// status() say why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "formats/dtype.h"
#include "gpu/kernel_id.h"
#include "memory/arena.h"

namespace loramux {

// Extents of a grid of blocks.
struct GridSize {
  std::uint32_t x = 1, y = 1, z = 1;
};

// One launch of a kernel. The arguments are copied by the call.
struct KernelLaunch {
  gpu::Kernel kernel = gpu::Kernel::kCount;
  DType dtype = DType::kF32;  // type of the kernel's instance
  GridSize grid;
  std::uint32_t threads = 128;      // threads of a block; a multiple of 32, at most 1,024
  std::size_t shared_bytes = 0;     // dynamic shared memory of a block
  const void* arguments = nullptr;  // the kernel's argument struct
  std::size_t argument_bytes = 0;
};

// y[i, j] = sum over t of x[i, t] * w[j, t] (+ bias[j]) (+ y[i, j] if `accumulate`), for i < m, j < n. All pointers are
// the device's. x and w have elements of `dtype`, y and bias are f32. Sums are f32. Strides are in elements.
struct DenseProduct {
  DType dtype = DType::kF32;
  std::int64_t m = 0, n = 0, k = 0;
  const void* x = nullptr;  // [m, k], rows `x_stride` apart
  std::int64_t x_stride = 0;
  const void* w = nullptr;      // [n, k], contiguous
  const float* bias = nullptr;  // [n], or null
  float* y = nullptr;           // [m, n], rows `y_stride` apart
  std::int64_t y_stride = 0;
  bool accumulate = false;
};

// What a device is.
struct DeviceProperties {
  std::string name;         // as the driver says, such as "NVIDIA H100 80GB HBM3", or "emulated"
  std::int64_t memory = 0;  // bytes
  int multiprocessors = 0;
  int major = 0, minor = 0;  // compute capability; 0.0: emulated
  std::int64_t l2_bytes = 0;
  double memory_bytes_per_second = 0;  // by the data sheet's clocks; 0: unknown
  // A row of a dense product has the same bits whatever else is in the batch (OpenDeviceOptions::batch_invariant).
  bool batch_invariant = false;
  std::string driver;  // version of the driver, such as "13.0"; empty: emulated
};

// A point in a stream's work.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};

// Recorded work that is enqueued again as a whole.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

// A queue of work. One thread at a time calls it. Calls enqueue and return; they report no errors (see above). Host
// memory of copies must be pinned (Device::AllocatePinned) and stay until the copy is done.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  virtual void CopyToDevice(void* device, const void* host, std::size_t bytes) = 0;
  virtual void CopyToHost(void* host, const void* device, std::size_t bytes) = 0;
  virtual void Fill(void* device, std::uint8_t byte, std::size_t bytes) = 0;
  virtual void Launch(const KernelLaunch& launch) = 0;
  virtual void Multiply(const DenseProduct& product) = 0;
  // Marks the point: `event` is done once all earlier work of this stream is.
  virtual void Record(DeviceEvent& event) = 0;
  // Later work of this stream waits for the last Record of `event` before this call; never recorded: does not wait.
  virtual void Wait(const DeviceEvent& event) = 0;
  // Blocks until all work is done. Error (kUnavailable): the device is lost.
  virtual Status Synchronize() = 0;
  // Records what `enqueue` enqueues on this stream instead of doing it. REQUIRES: `enqueue` calls neither Synchronize
  // nor Wait for another stream's events.
  virtual Result<std::unique_ptr<DeviceGraph>> Capture(const std::function<void()>& enqueue) = 0;
  // Enqueues recorded work. The graph outlives its work.
  virtual void Replay(const DeviceGraph& graph) = 0;
};

// The device; thread-safe, and outlives all that it made.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceProperties& properties() const = 0;
  // Bytes that an allocation could still get.
  virtual std::int64_t FreeMemory() const = 0;
  // Device memory (MemoryKind::kDevice), aligned to 256 bytes, content arbitrary. `name` appears in the error. Error
  // (kResourceExhausted): says how much was asked for and how much is free.
  virtual Result<std::unique_ptr<Arena>> Allocate(std::string_view name, std::int64_t bytes) = 0;
  // Host memory that the device's copy engines and, at the same address, kernels reach (MemoryKind::kPinned). Errors as
  // above.
  virtual Result<std::unique_ptr<Arena>> AllocatePinned(std::string_view name, std::int64_t bytes) = 0;
  virtual Result<std::unique_ptr<DeviceStream>> CreateStream() = 0;
  virtual std::unique_ptr<DeviceEvent> CreateEvent() = 0;
  // Whether the last Record of the event is done; true if it was never recorded. Never blocks. Error: the device is
  // lost.
  virtual Result<bool> IsDone(const DeviceEvent& event) = 0;
  // Ok while the device works.
  virtual Status status() const = 0;
};

// Launches with an argument struct.
template <typename Arguments>
void Launch(DeviceStream& stream, gpu::Kernel kernel, DType dtype, GridSize grid, std::uint32_t threads,
            std::size_t shared_bytes, const Arguments& arguments) {
  stream.Launch({kernel, dtype, grid, threads, shared_bytes, &arguments, sizeof(arguments)});
}

}  // namespace loramux
