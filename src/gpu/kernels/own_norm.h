// The weights of a norm that a row takes: those that its adapter brings, or the base model's.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/own_rows.h"

namespace loramux::gpu {

LORAMUX_DEVICE const float* NormWeights(const OwnNorm& norm, std::int64_t row, const float* base) {
  if (norm.own == nullptr) return base;
  const OwnPartsOnDevice* own = Load(norm.own + row);
  if (own == nullptr) return base;
  const float* const* norms = Load(&own->norms);
  if (norms == nullptr) return base;
  const float* weights = Load(norms + norm.index);
  return weights == nullptr ? base : weights;
}

}  // namespace loramux::gpu
