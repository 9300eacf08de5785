// Reads memory as fast as the device can: the ceiling that measurements of other kernels are compared with.
#pragma once

#include <cstdint>

#include "gpu/device.h"

namespace loramux::gpu {

// Threads of a block of the kernel.
inline constexpr std::uint32_t kReadAllThreads = 512;

// sums[b] = the sum, modulo 2^32, of the words that block b reads; the sum of all `sums` is that of the memory.
// Instance: f32.
struct ReadAllArguments {
  const void* from;    // 16-byte aligned
  std::int64_t count;  // pieces of 16 bytes
  std::uint32_t* sums;
};
void ReadAll(DeviceStream& stream, std::uint32_t blocks, const ReadAllArguments& arguments);

}  // namespace loramux::gpu
