// Rows of the embedding and of the output matrix that adapters bring in place of the base model's, and LoRA of the
// embedding, for the rows of a mixed batch. All pointers are the device's; strides are in elements; `rows` and
// `max_rows` as in elementwise.h.
#pragma once

#include <cstdint>

#include "formats/dtype.h"
#include "gpu/device.h"
#include "gpu/kernels/lora.h"

namespace loramux::gpu {

// The rows that one adapter brings of one matrix. Each is contiguous and 64-byte aligned, anywhere in the pages.
struct OwnRowsOnDevice {
  const std::int32_t* tokens;  // [count], ascending
  const void* const* rows;     // [count]
  std::int32_t count;
};
// LoRA of the embedding: `in` of the module is the vocabulary.
struct EmbeddingLoraOnDevice {
  std::int32_t tokens = 0;    // how many: the base model's and those that the adapter adds
  DType dtype = DType::kF32;  // type of the rows of A and B: f32, bf16, f16 or i8
  LoraModule module = {};     // its shifts are 0
};
// What one adapter brings, in device memory.
struct OwnPartsOnDevice {
  OwnRowsOnDevice embedding, output;
  DType dtype;                // type of the rows: f32, bf16 or f16
  const float* const* norms;  // weights of norms, null: the base's; null: of all
  EmbeddingLoraOnDevice embedding_lora = {};
};

// Whose weights of one norm each row of a batch takes.
struct OwnNorm {
  const OwnPartsOnDevice* const* own = nullptr;  // [rows]; null: none. Null: all rows take the base's
  std::int32_t index = 0;                        // index in OwnPartsOnDevice::norms
};

// hidden[i, :] = the row that the adapter of i brings for tokens[i]; as it was, where there is none. Then += sum over j
// ascending of (scale * factors[j] * A[j, tokens[i]]) * B[:, j] of its LoRA, and the sum times the gains. One instance:
// f32.
struct EmbedOwnRowsArguments {
  const OwnPartsOnDevice* const* own;  // [rows]; null: none
  const std::int32_t* tokens;          // [rows]
  const std::int32_t* rows;
  float* hidden;  // [rows, width]
  std::int64_t width, hidden_stride;
};
void EmbedOwnRows(DeviceStream& stream, std::int64_t max_rows, const EmbedOwnRowsArguments& arguments);

// y[i, token] = -infinity for the tokens from `begin` on, before OwnProducts puts those of adapters. One instance: f32.
struct ExcludeTokensArguments {
  const std::int32_t* rows;
  float* y;                             // [rows, vocabulary]
  std::int64_t begin, width, y_stride;  // width: how many tokens
};
void ExcludeTokens(DeviceStream& stream, std::int64_t max_rows, const ExcludeTokensArguments& arguments);

// y[i, token] = sum over t of x[i, t] * row[t] for each row of the output matrix that the adapter of i brings, in place
// of what was there. Sums in f32, in an order that depends on the width alone. Rows of one adapter are read once for
// kOwnTileRows rows of x. Instance: the type of x.
inline constexpr std::int32_t kOwnTileRows = 8;
struct OwnProductsArguments {
  const OwnPartsOnDevice* const* own;  // [rows]; null: none
  const void* x;                       // [rows, width]
  const std::int32_t* rows;
  float* y;  // [rows, vocabulary]
  std::int64_t width, x_stride, y_stride;
};
// `max_count`: at least each adapter's number of such rows.
void OwnProducts(DeviceStream& stream, DType dtype, std::int64_t max_rows, std::int64_t max_count,
                 const OwnProductsArguments& arguments);

}  // namespace loramux::gpu
