// Causal attention over paged keys and values on a device.
#pragma once

#include <cstdint>

#include "formats/dtype.h"
#include "gpu/device.h"
#include "gpu/kernels/step_data.h"

namespace loramux::gpu {

// Positions that one block of the decode kernel reads. The partition of a row's positions into chunks starts at
// position 0 and depends on nothing else, so that a row's bits do not depend on the batch.
inline constexpr std::int64_t kAttentionChunk = 256;

// out[row, head, :] = softmax(q . K / sqrt(head_dim)) V over positions p' of the row's own sequence with
// p - window < p' <= p (window 0: all p' <= p). Query head h reads head h / (num_heads / num_kv_heads) of K and V.
// Instance: the type of the pages.
struct AttentionArguments {
  const float* q;  // [rows, num_heads * head_dim]
  std::int64_t q_stride;
  void* out;  // [rows, num_heads * head_dim] of `out_dtype`
  std::int64_t out_stride;
  DType out_dtype;
  const std::int32_t* row_position;
  const std::int32_t* row_sequence;
  const SequenceOnDevice* sequences;
  const std::uint32_t* page_tables;
  PagesOnDevice pages;
  std::int64_t layer_offset;  // bytes from the start of a page to the layer's K; V follows K
  std::int32_t num_heads, window;
  const std::int32_t* rows;      // how many entries of row_list there are, or rows of the batch
  const std::int32_t* row_list;  // decode: the rows to compute; null: all
  const std::int32_t* tiles;     // prefill: [num_tiles][sequence, first row in the sequence]
  const std::int32_t* num_tiles;
  float* partial;  // decode: AttentionPartialFloats(...) floats
};

// Rows of queries of one tile of the prefill kernel.
inline constexpr std::int64_t kPrefillTile = 64;

// Floats of `partial` for `max_rows` rows of sequences of at most `max_positions` positions.
std::int64_t AttentionPartialFloats(std::int64_t max_rows, std::int64_t max_positions, std::int64_t num_heads,
                                    std::int64_t head_dim);
// One query row at a time, split over chunks of positions: for sequences with few rows. Two launches: chunks, then
// their sum in a fixed order.
void AttentionDecode(DeviceStream& stream, DType kv_dtype, std::int64_t max_rows, std::int64_t max_positions,
                     const AttentionArguments& arguments);
// Tiles of kPrefillTile rows of one sequence. 16-bit types use tensor cores.
void AttentionPrefill(DeviceStream& stream, DType kv_dtype, std::int64_t max_tiles,
                      const AttentionArguments& arguments);

}  // namespace loramux::gpu
