#include "gpu/kernels/read_all.h"

#include "gpu/kernels/read_all_kernel.h"

namespace loramux::gpu {

void ReadAll(DeviceStream& stream, std::uint32_t blocks, const ReadAllArguments& arguments) {
  Launch(stream, Kernel::kReadAll, DType::kF32, {.x = blocks}, kReadAllThreads, sizeof(ReadAllShared), arguments);
}

}  // namespace loramux::gpu
