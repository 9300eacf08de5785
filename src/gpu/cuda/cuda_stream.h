// Streams, events and graphs of a CudaDevice.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <cuda_runtime_api.h>

#include "gpu/cuda/cuda_device.h"
#include "gpu/device.h"

namespace loramux::gpu {

class CudaEvent final : public DeviceEvent {
 public:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  ~CudaEvent() override;
  // Null if the device was lost when it was made.
  cudaEvent_t handle() const { return event_; }

 private:
  cudaEvent_t event_;
};

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(cudaGraphExec_t graph) : graph_(graph) {}
  ~CudaGraph() override;
  cudaGraphExec_t handle() const { return graph_; }

 private:
  cudaGraphExec_t graph_;
};

class CudaStream final : public DeviceStream {
 public:
  // Owns `stream`.
  CudaStream(CudaDevice& device, cudaStream_t stream) : device_(device), stream_(stream) {}
  ~CudaStream() override;

  void CopyToDevice(void* device, const void* host, std::size_t bytes) override;
  void CopyToHost(void* host, const void* device, std::size_t bytes) override;
  void Fill(void* device, std::uint8_t byte, std::size_t bytes) override;
  void Launch(const KernelLaunch& launch) override;
  void Multiply(const DenseProduct& product) override;
  void Record(DeviceEvent& event) override;
  void Wait(const DeviceEvent& event) override;
  Status Synchronize() override;
  Result<std::unique_ptr<DeviceGraph>> Capture(const std::function<void()>& enqueue) override;
  void Replay(const DeviceGraph& graph) override;

 private:
  // Memory that products of this stream may use; taken at the first one. Null: the device is lost.
  void* Workspace();

  CudaDevice& device_;
  cudaStream_t stream_;
  void* workspace_ = nullptr;
  bool capturing_ = false;
};

}  // namespace loramux::gpu
