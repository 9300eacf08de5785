// Causal attention over paged keys and values on a device.
//
// A row's positions are cut into chunks at absolute multiples of kAttentionChunk. Each chunk has an online softmax of
// its own, over tiles of positions in ascending order; the chunks are merged in ascending order. Both kernels below do
// just that, so a row has the same bits from either of them, in any batch, and however its prompt was cut.
//
// q is rounded to the pages' type when it is read. With 16-bit pages the products use tensor cores, weights are rounded
// to the pages' type before they meet the values, and all sums are f32. With f32 pages nothing is rounded.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/dtype.h"
#include "formats/operation_forms.h"
#include "gpu/device.h"
#include "gpu/kernels/step_data.h"

namespace loramux::gpu {

// Positions that one block of the decode kernel reads.
inline constexpr std::int32_t kAttentionChunk = 256;
// Rows of queries of one tile of the prefill kernel.
inline constexpr std::int32_t kPrefillTile = 64;
// The largest head_dim; it must be even.
inline constexpr std::int32_t kMaxHeadDim = 256;

// A chunk of positions of one row: [chunk, chunk + 1) * kAttentionChunk.
struct DecodeChunk {
  std::int32_t row, chunk;
};
// A row of the decode kernel. Its chunks are adjacent in the list of chunks, in ascending order, up to the one of the
// row's own position.
struct DecodeRow {
  std::int32_t row;
  std::int32_t first_item;   // index of its first chunk in the list
  std::int32_t first_chunk;  // DecodeChunk::chunk of that item
};
// Up to kPrefillTile adjacent rows of one sequence.
struct PrefillTile {
  std::int32_t sequence, first_row;  // first_row: of the sequence's rows in this step, a multiple of kPrefillTile
};

// The work of a step, the same for every layer. All in device memory, lists 16-byte aligned (sequences too).
struct AttentionWork {
  const DecodeChunk* chunks;
  const std::int32_t* num_chunks;
  const DecodeRow* decode_rows;
  const std::int32_t* num_decode_rows;
  const PrefillTile* tiles;
  const std::int32_t* num_tiles;
};

// The same on the host, where it is built. Sequences of one row are for the decode kernel, others for the prefill
// kernel; that is a matter of speed alone.
struct AttentionWorkLists {
  std::vector<DecodeChunk> chunks;
  std::vector<DecodeRow> decode_rows;
  std::vector<PrefillTile> tiles;

  void Clear();
  // Adds the row at `position`. `window`: the largest of all layers; 0 if a layer has none.
  void AddDecodeRow(std::int32_t row, std::int64_t position, std::int64_t window);
  // Adds the tiles of `rows` rows of `sequence`, an index of AttentionArguments::sequences.
  void AddPrefill(std::int32_t sequence, std::int64_t rows);
};

// out[row, head, :] = softmax(scale q . K) V, of capped products if there is a soft cap, over positions p' of the row's
// own sequence with p - window < p' <= p (window 0: all p' <= p). Query head h reads head h / (num_heads /
// num_kv_heads) of K and V. Instance: the type of the pages. REQUIRES: head_dim is even and at most kMaxHeadDim;
// q_stride and out_stride are even; pages are 16-byte aligned. Multiples of 8 (16-bit pages) or 4 (f32) are read 16
// bytes at a time.
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
  std::int32_t num_heads;
  ScoreForm form;
  AttentionWork work;
  float* partial;                  // decode: AttentionPartialFloats(...) floats, 16-byte aligned
  std::int32_t q_head_stride = 0;  // from a head of q to the next, even; 0: head_dim
};

// Floats of `partial` for `max_chunks` items of AttentionWork::chunks.
std::int64_t AttentionPartialFloats(std::int64_t max_chunks, std::int64_t num_heads, std::int64_t head_dim);
// The rows of work.decode_rows, split over chunks of positions: for sequences with few rows. Two launches: chunks, then
// their merge. Reads each byte of K and V once for up to 16 query heads that share it. max_rows and max_chunks bound
// the counts in device memory.
void AttentionDecode(DeviceStream& stream, DType kv_dtype, std::int64_t max_rows, std::int64_t max_chunks,
                     const AttentionArguments& arguments);
// The rows of work.tiles. max_tiles bounds the count in device memory.
void AttentionPrefill(DeviceStream& stream, DType kv_dtype, std::int64_t max_tiles,
                      const AttentionArguments& arguments);

}  // namespace loramux::gpu
