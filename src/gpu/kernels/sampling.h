// Choosing tokens on a device.
#pragma once

#include <cstdint>

#include "gpu/device.h"

namespace loramux::gpu {

// tokens[i] = the lowest index of the largest logit of row i; -1 if the row holds a NaN or its largest logit is not
// finite (the processor then decides). One instance: f32.
struct ArgmaxRowsArguments {
  const float* logits;  // [rows, vocab]
  std::int64_t vocab, stride;
  const std::int32_t* rows;
  std::int32_t* tokens;  // [rows]
};
void ArgmaxRows(DeviceStream& stream, std::int64_t max_rows, const ArgmaxRowsArguments& arguments);

}  // namespace loramux::gpu
