// A matrix of activations in a device's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace loramux {

// One row for each token (or row of logits). Not owning. `low` holds what goes into products, in the type of the
// weights; `wide` holds what comes out of them, as float32. Either may be null. Strides are in elements.
struct GpuRows {
  std::byte* low = nullptr;
  float* wide = nullptr;
  std::int64_t stride = 0;

  // The same rows from column `first` on. REQUIRES: they are only wide.
  GpuRows From(std::int64_t first) const {
    CHECK(low == nullptr);
    return {nullptr, wide + first, stride};
  }
};

}  // namespace loramux
