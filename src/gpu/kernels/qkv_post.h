// What happens to q, k and v between their product and attention, in one launch.
#pragma once

#include <cstdint>

#include "formats/dtype.h"
#include "gpu/device.h"
#include "gpu/kernels/own_rows.h"
#include "gpu/kernels/step_data.h"

namespace loramux::gpu {

// For each row: norms each head of q and k (if the weights are not null), rotates each head of q and k by the row's
// angles as transformers' apply_rotary_pos_emb does (pairs t and t + head_dim / 2), leaves q in place as f32 (attention
// rounds it), and stores k and v in the row's page, rounded to the pages' type. Instance: the type of the pages.
// REQUIRES: head_dim is even and at most 256 (kMaxHeadDim of attention.h).
struct QkvPostArguments {
  float* qkv;  // [rows, (num_heads + 2 num_kv_heads) * head_dim]
  std::int64_t qkv_stride;
  const float *q_norm, *k_norm;  // [head_dim], or null
  float eps;
  const float *cos, *sin;            // [rows, head_dim / 2]
  const std::int32_t* row_position;  // [rows]
  const std::int32_t* row_sequence;  // [rows]: index of its sequence
  const SequenceOnDevice* sequences;
  const std::uint32_t* page_tables;
  PagesOnDevice pages;
  std::int64_t layer_offset;  // bytes from the start of a page to the layer's K
  const std::int32_t* rows;
  std::int32_t num_heads;
  OwnNorm own_q = {}, own_k = {};  // in place of q_norm and k_norm
};
void QkvPost(DeviceStream& stream, DType kv_dtype, std::int64_t max_rows, const QkvPostArguments& arguments);

}  // namespace loramux::gpu
