#include "gpu/cuda/cuda_stream.h"

#include <string>
#include <utility>

#include "base/check.h"

namespace loramux::gpu {

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

CudaGraph::~CudaGraph() { cudaGraphExecDestroy(graph_); }

CudaStream::~CudaStream() {
  device_.Enter();
  cudaStreamDestroy(stream_);  // what it still has to do is done first
  if (workspace_ != nullptr) cudaFree(workspace_);
}

void CudaStream::CopyToDevice(void* device, const void* host, std::size_t bytes) {
  if (bytes == 0 || !device_.Enter()) return;
  device_.Succeeded(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "a copy to the GPU");
}

void CudaStream::CopyToHost(void* host, const void* device, std::size_t bytes) {
  if (bytes == 0 || !device_.Enter()) return;
  device_.Succeeded(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_), "a copy from the GPU");
}

void CudaStream::Fill(void* device, std::uint8_t byte, std::size_t bytes) {
  if (bytes == 0 || !device_.Enter()) return;
  device_.Succeeded(cudaMemsetAsync(device, byte, bytes, stream_), "filling memory of the GPU");
}

void CudaStream::Launch(const KernelLaunch& launch) {
  if (!device_.Enter()) return;
  const KernelEntry& entry = device_.EntryOf(launch.kernel, launch.dtype);
  CHECK_EQ(launch.argument_bytes, entry.argument_bytes);
  CHECK_LE(launch.threads, static_cast<std::uint32_t>(entry.max_threads));
  if (launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0) return;
  cudaLaunchConfig_t config = {};
  config.gridDim = {launch.grid.x, launch.grid.y, launch.grid.z};
  config.blockDim = {launch.threads, 1, 1};
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = stream_;
  void* arguments[] = {const_cast<void*>(launch.arguments)};
  const auto variant = static_cast<std::size_t>(entry.variant_of(launch.arguments));
  const cudaError_t error = cudaLaunchKernelExC(&config, entry.functions.at(variant), arguments);
  if (error != cudaSuccess) {
    device_.Succeeded(error, ("the kernel " + std::string(NameOf(launch.kernel))).c_str());
  }
}

void* CudaStream::Workspace() {
  if (workspace_ == nullptr) {
    device_.Succeeded(cudaMalloc(&workspace_, DenseProducts::kWorkspaceBytes), "memory for dense products");
  }
  return workspace_;
}

void CudaStream::Multiply(const DenseProduct& product) {
  if (product.m == 0 || product.n == 0 || !device_.Enter()) return;
  void* workspace = Workspace();
  if (workspace == nullptr) return;
  const Status status = device_.dense().Enqueue(product, workspace, stream_);
  if (!status.ok()) device_.Lose(status.error().message);
}

void CudaStream::Record(DeviceEvent& event) {
  if (!device_.Enter()) return;
  // In a graph: a node that records at each replay, not a mark for other streams of the capture.
  const unsigned flags = capturing_ ? cudaEventRecordExternal : cudaEventRecordDefault;
  device_.Succeeded(cudaEventRecordWithFlags(static_cast<CudaEvent&>(event).handle(), stream_, flags),
                    "recording an event");
}

void CudaStream::Wait(const DeviceEvent& event) {
  if (!device_.Enter()) return;
  const unsigned flags = capturing_ ? cudaEventWaitExternal : cudaEventWaitDefault;
  device_.Succeeded(cudaStreamWaitEvent(stream_, static_cast<const CudaEvent&>(event).handle(), flags),
                    "waiting for an event");
}

Status CudaStream::Synchronize() {
  if (device_.Enter()) device_.Succeeded(cudaStreamSynchronize(stream_), "work on the GPU");
  return device_.status();
}

Result<std::unique_ptr<DeviceGraph>> CudaStream::Capture(const std::function<void()>& enqueue) {
  if (!device_.Enter()) return device_.status().error();
  CHECK(!capturing_);
  // Relaxed: the first use of a kernel or of the workspace may allocate.
  if (!device_.Succeeded(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "starting a graph")) {
    return device_.status().error();
  }
  capturing_ = true;
  enqueue();
  capturing_ = false;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  if (device_.Succeeded(cudaStreamEndCapture(stream_, &graph), "recording a graph")) {
    device_.Succeeded(cudaGraphInstantiate(&executable, graph, 0), "building a graph");
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (executable == nullptr) return device_.status().error();
  return std::unique_ptr<DeviceGraph>(std::make_unique<CudaGraph>(executable));
}

void CudaStream::Replay(const DeviceGraph& graph) {
  if (!device_.Enter()) return;
  device_.Succeeded(cudaGraphLaunch(static_cast<const CudaGraph&>(graph).handle(), stream_), "launching a graph");
}

}  // namespace loramux::gpu
