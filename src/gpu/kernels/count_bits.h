// How many bits are set.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"

namespace loramux::gpu {

LORAMUX_DEVICE std::uint32_t CountBits(std::uint32_t bits) {
  bits = bits - (bits >> 1 & 0x55555555u);
  bits = (bits & 0x33333333u) + (bits >> 2 & 0x33333333u);
  return ((bits + (bits >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24;
}

}  // namespace loramux::gpu
