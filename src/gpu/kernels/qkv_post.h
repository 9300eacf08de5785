// What happens to q, k and v between their product and attention, in one launch.
#pragma once

#include <cstdint>

#include "formats/dtype.h"
#include "gpu/device.h"
#include "gpu/kernels/own_rows.h"
#include "gpu/kernels/step_data.h"

namespace loramux::gpu {

// For each row: norms each head of q and k (if the weights are not null; by RMS, or with `centers` as a LayerNorm
// without a bias, whose weights differ from head to head), rotates the first rotary_dim elements of each head of q and
// k by the row's angles (if they are not null) as transformers' apply_rotary_pos_emb does (pairs t and t + rotary_dim /
// 2, or 2 t and 2 t + 1), multiplies q by the row's scale and leaves it in place as f32 (attention rounds it), and
// stores k and v in the row's page, rounded to the pages' type. Instance: the type of the pages. REQUIRES: head_dim is
// even and at most 256 (kMaxHeadDim of attention.h).
struct QkvPostArguments {
  float* qkv;  // [rows, (num_heads + 2 num_kv_heads) * head_dim]; as q_head_stride says
  std::int64_t qkv_stride;
  const float *q_norm, *k_norm;  // [head_dim], with `centers` of each head; or null
  float eps;
  const float *cos, *sin;            // [rows, rotary_dim / 2], or null
  const std::int32_t* row_position;  // [rows]
  const std::int32_t* row_sequence;  // [rows]: index of its sequence
  const SequenceOnDevice* sequences;
  const std::uint32_t* page_tables;
  PagesOnDevice pages;
  std::int64_t layer_offset;  // bytes from the start of a page to the layer's K
  const std::int32_t* rows;
  std::int32_t num_heads;
  OwnNorm own_q = {}, own_k = {};  // in place of q_norm and k_norm
  float norm_offset = 0;           // added to the weights of norms
  std::int32_t rotary_dim = 0;     // 0: head_dim
  bool adjacent_pairs = false;
  const float* query_scale = nullptr;  // [rows], by which q is multiplied; null: 1
  bool centers = false;
  std::int32_t q_head_stride = 0;  // from a head of q to the next, where gates lie between them; 0: head_dim
};
void QkvPost(DeviceStream& stream, DType kv_dtype, std::int64_t max_rows, const QkvPostArguments& arguments);

}  // namespace loramux::gpu
