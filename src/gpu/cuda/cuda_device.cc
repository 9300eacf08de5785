#include "gpu/cuda/cuda_device.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "gpu/cuda/cuda_stream.h"

namespace loramux::gpu {
namespace {

// Compute capability of the oldest GPU that the kernels are built for: Ampere.
constexpr int kMinMajor = 8;

// Memory of the GPU, or pinned memory of the host.
class CudaArena final : public Arena {
 public:
  CudaArena(const CudaDevice& device, MemoryKind kind, void* base, std::int64_t size)
      : device_(device), kind_(kind), base_(static_cast<std::byte*>(base)), size_(size) {}
  ~CudaArena() override {
    device_.Enter();
    if (kind_ == MemoryKind::kDevice) {
      cudaFree(base_);
    } else {
      cudaFreeHost(base_);
    }
  }
  MemoryKind kind() const override { return kind_; }
  std::byte* base() const override { return base_; }
  std::int64_t size() const override { return size_; }

 private:
  const CudaDevice& device_;
  const MemoryKind kind_;
  std::byte* const base_;
  const std::int64_t size_;
};

std::size_t TypeIndex(DType dtype) {
  CHECK(IsWeightDType(dtype));
  return dtype == DType::kF32 ? 0 : dtype == DType::kBF16 ? 1 : 2;
}

int Attribute(cudaDeviceAttr attribute, int index) {
  int value = 0;
  cudaDeviceGetAttribute(&value, attribute, index);
  return value;
}

// 13000 -> "13.0".
std::string CudaVersion(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::string DescribeCudaError(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
}

Result<std::unique_ptr<Device>> CudaDevice::Open(const OpenDeviceOptions& options) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(options.index));
  if (const cudaError_t error = cudaSetDevice(options.index); error != cudaSuccess) {
    return Unavailable("GPU " + std::to_string(options.index) + " does not start: " + DescribeCudaError(error));
  }
  RETURN_IF_ERROR(device->ReadProperties());
  RETURN_IF_ERROR(device->LoadKernels());
  device->properties_.batch_invariant = options.batch_invariant;
  ASSIGN_OR_RETURN(device->dense_, DenseProducts::Create(options.batch_invariant));
  return std::unique_ptr<Device>(std::move(device));
}

CudaDevice::~CudaDevice() {
  if (dense_ != nullptr) Enter();  // cuBLASLt's handle belongs to the GPU
}

Status CudaDevice::ReadProperties() {
  cudaDeviceProp read;
  if (const cudaError_t error = cudaGetDeviceProperties(&read, index_); error != cudaSuccess) {
    return Unavailable("GPU " + std::to_string(index_) + " does not say what it is: " + DescribeCudaError(error));
  }
  if (read.major < kMinMajor) {
    return Unsupported("GPU " + std::to_string(index_) + " is a " + read.name + " of compute capability " +
                       std::to_string(read.major) + "." + std::to_string(read.minor) + ", and 8.0 (Ampere) or later " +
                       "is needed. Choose another GPU, or run on the processor");
  }
  int driver = 0;
  cudaDriverGetVersion(&driver);
  properties_.name = read.name;
  properties_.memory = static_cast<std::int64_t>(read.totalGlobalMem);
  properties_.multiprocessors = read.multiProcessorCount;
  properties_.major = read.major;
  properties_.minor = read.minor;
  properties_.l2_bytes = read.l2CacheSize;
  // Memory moves data at both edges of its clock, which is given in kHz.
  properties_.memory_bytes_per_second = 2.0 * 1e3 * Attribute(cudaDevAttrMemoryClockRate, index_) *
                                        Attribute(cudaDevAttrGlobalMemoryBusWidth, index_) / 8;
  properties_.driver = CudaVersion(driver);
  return Ok{};
}

Status CudaDevice::LoadKernels() {
  const int most_shared = Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index_);
  for (const auto entries :
       {ElementwiseEntries(), LoraEntries(), SkinnyEntries(), LoraFusedEntries(), ExpertEntries(), AssistEntries(),
        AttentionDecodeEntries(), AttentionPrefillEntries(), StatesEntries(), SamplingEntries()}) {
    for (const KernelEntry& entry : entries) {
      for (const void* function : entry.functions) {
        if (function == nullptr) continue;
        const cudaError_t error =
            cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared);
        if (error == cudaSuccess) continue;
        return Unavailable("the kernel " + std::string(NameOf(entry.kernel)) +
                           " does not load on this GPU: " + DescribeCudaError(error));
      }
      entries_[static_cast<std::size_t>(entry.kernel)][TypeIndex(entry.dtype)] = entry;
    }
  }
  return Ok{};
}

const KernelEntry& CudaDevice::EntryOf(Kernel kernel, DType dtype) const {
  const KernelEntry& entry = entries_.at(static_cast<std::size_t>(kernel))[TypeIndex(dtype)];
  CHECK(entry.functions[0] != nullptr);
  return entry;
}

std::int64_t CudaDevice::FreeMemory() const {
  std::size_t free = 0, total = 0;
  if (!Enter() || cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
  return static_cast<std::int64_t>(free);
}

Result<std::unique_ptr<Arena>> CudaDevice::Allocate(std::string_view name, std::int64_t bytes) {
  CHECK_GT(bytes, 0);
  if (!Enter()) return status().error();
  void* base = nullptr;
  const cudaError_t error = cudaMalloc(&base, static_cast<std::size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // an ordinary outcome: the next call must not see it
    return ResourceExhausted(std::string(name) + ": needs " + FormatBytes(bytes) + " of GPU memory, and " +
                             FormatBytes(FreeMemory()) + " of " + FormatBytes(properties_.memory) + " are free");
  }
  if (!Succeeded(error, "allocating memory")) return status().error();
  return std::unique_ptr<Arena>(std::make_unique<CudaArena>(*this, MemoryKind::kDevice, base, bytes));
}

Result<std::unique_ptr<Arena>> CudaDevice::AllocatePinned(std::string_view name, std::int64_t bytes) {
  CHECK_GT(bytes, 0);
  if (!Enter()) return status().error();
  void* base = nullptr;
  const cudaError_t error =
      cudaHostAlloc(&base, static_cast<std::size_t>(bytes), cudaHostAllocPortable | cudaHostAllocMapped);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return ResourceExhausted(std::string(name) + ": the system does not pin " + FormatBytes(bytes) +
                             " of memory for the GPU. Ask for less, or raise the limit of locked memory (ulimit -l)");
  }
  if (!Succeeded(error, "pinning memory")) return status().error();
  return std::unique_ptr<Arena>(std::make_unique<CudaArena>(*this, MemoryKind::kPinned, base, bytes));
}

Result<std::unique_ptr<DeviceStream>> CudaDevice::CreateStream() {
  if (!Enter()) return status().error();
  cudaStream_t stream = nullptr;
  // Not ordered after the default stream, which nothing uses.
  if (!Succeeded(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream")) return status().error();
  return std::unique_ptr<DeviceStream>(std::make_unique<CudaStream>(*this, stream));
}

std::unique_ptr<DeviceEvent> CudaDevice::CreateEvent() {
  cudaEvent_t event = nullptr;
  if (Enter()) Succeeded(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  return std::make_unique<CudaEvent>(event);
}

Result<bool> CudaDevice::IsDone(const DeviceEvent& event) {
  if (!Enter()) return status().error();
  const cudaError_t error = cudaEventQuery(static_cast<const CudaEvent&>(event).handle());
  if (error == cudaErrorNotReady) return false;
  if (!Succeeded(error, "work on the GPU")) return status().error();
  return true;
}

Status CudaDevice::status() const {
  if (!lost_.load(std::memory_order_acquire)) return Ok{};
  const std::lock_guard lock(mutex_);
  return Unavailable(why_lost_);
}

bool CudaDevice::Enter() const {
  // A failure shows in the call that follows. (After a loss destructors still want their GPU.)
  cudaSetDevice(index_);
  return !lost_.load(std::memory_order_acquire);
}

bool CudaDevice::Succeeded(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return true;
  Lose(std::string(what) + " failed: " + DescribeCudaError(error));
  return false;
}

void CudaDevice::Lose(std::string message) {
  const std::lock_guard lock(mutex_);
  if (lost_.load(std::memory_order_relaxed)) return;
  why_lost_ = "GPU " + std::to_string(index_) + " (" + properties_.name + ") is lost: " + std::move(message);
  lost_.store(true, std::memory_order_release);
}

}  // namespace loramux::gpu
