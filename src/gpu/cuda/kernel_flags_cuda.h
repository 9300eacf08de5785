// Flags (gpu/kernel_api.h): words that other streams and the processor read and write.
#pragma once

#include <cstdint>

#include "gpu/cuda/kernel_api_cuda.h"

namespace loramux::gpu {

LORAMUX_DEVICE std::uint32_t LoadFlag(const std::uint32_t* flag) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
LORAMUX_DEVICE void StoreFlag(std::uint32_t* flag, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
LORAMUX_DEVICE std::int64_t GlobalNanoseconds() {
  std::int64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
LORAMUX_DEVICE bool WaitFlag(const std::uint32_t* flag, std::uint32_t value, std::uint32_t mask,
                             std::int64_t timeout_ns) {
  const std::int64_t begin = GlobalNanoseconds();
  while ((LoadFlag(flag) & mask) != value) {
    if (GlobalNanoseconds() - begin > timeout_ns) return (LoadFlag(flag) & mask) == value;
    __nanosleep(100);
  }
  return true;
}

}  // namespace loramux::gpu
