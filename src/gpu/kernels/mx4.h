// MXFP4: 32 neighbouring elements share a scale that is a power of two.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"

namespace loramux::gpu {

// The scale is that of twice the elements, which then are whole numbers: the float with this exponent, or 0.
LORAMUX_DEVICE float Mx4Scale(std::uint32_t exponent) { return AsFloat(exponent << 23); }
// Twice the element of a code: 0, 1, 2, 3, 4, 6, 8, 12, and the same below zero.
LORAMUX_DEVICE float Mx4Twice(std::uint32_t code) {
  const std::uint32_t magnitude = code & 7;
  const std::uint32_t whole = magnitude < 2 ? magnitude : (2 | (magnitude & 1)) << (magnitude / 2 - 1);
  const auto value = static_cast<float>(whole);
  return (code & 8) != 0 ? -value : value;
}

}  // namespace loramux::gpu
