// The expand of the LoRA product within the launch that follows it, for batches of few rows (LoraWork::pieces). Each is
// LoraExpand and then the kernel that it is named after, bit by bit. A block has all that it needs of the rows of one
// piece, so an adapter's rows of B are read once for 8 rows of the batch.
#pragma once

#include <cstdint>

#include "formats/dtype.h"
#include "gpu/device.h"
#include "gpu/kernels/elementwise.h"
#include "gpu/kernels/lora.h"
#include "gpu/kernels/qkv_post.h"

namespace loramux::gpu {

// Outputs of the expand are among q, k and v of qkv. REQUIRES: nothing lies between the heads of q.
struct LoraQkvPostArguments {
  QkvPostArguments qkv;
  LoraExpandArguments expand;
  std::int32_t heads_of_tile = 0;  // set by the launch: heads that a block has
};
// REQUIRES: expand.work has pieces, of all rows; so for the others.
void LoraQkvPost(DeviceStream& stream, DType kv_dtype, const LoraQkvPostArguments& arguments);

// Outputs of the expand are the halves of gate.x, or one of them.
struct LoraGateMulArguments {
  GateMulArguments gate;
  LoraExpandArguments expand;
};
void LoraGateMul(DeviceStream& stream, DType dtype, const LoraGateMulArguments& arguments);

// The output of the expand is norm.added, all of it.
struct LoraNormRowsArguments {
  NormRowsArguments norm;
  LoraExpandArguments expand;
};
void LoraNormRows(DeviceStream& stream, DType dtype, const LoraNormRowsArguments& arguments);

}  // namespace loramux::gpu
