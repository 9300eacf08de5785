// The hyperbolic tangent.
#pragma once

#include "gpu/kernel_api.h"

namespace loramux::gpu {

// tanh(x), to about 2e-7 of itself: near 0, where 1 - 2 / (1 + e^2x) cancels, by its series.
LORAMUX_DEVICE float Tanh(float x) {
  const float s = x * x;
  const float series =
      Fma(Fma(Fma(Fma(0.0218694885f, s, -0.0539682540f), s, 0.133333333f), s, -0.333333333f) * s, x, x);
  return s < 0.09f ? series : 1.0f - 2.0f / (1.0f + Exp(2.0f * x));
}

}  // namespace loramux::gpu
