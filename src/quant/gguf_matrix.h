// Matrices and vectors of GGUF files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "formats/gguf_file.h"
#include "quant/stored_matrix.h"

namespace loramux {

// `count` elements from `data` on as float32, each computed as ggml does. REQUIRES: `type` can be read
// (GgufType::instead is null); `count` is a multiple of its block; `data` holds them.
void ReadGguf(const GgufType& type, const std::byte* data, std::int64_t count, float* out);

// The rows of a tensor of rank 2 as a matrix; of rank 3, those of matrices one after the other. What loramux keeps of
// each type:
//   F32, F16, BF16  the floats
//   Q8_0, Q5_0      kQ8, to the bit
//   Q4_0, Q4_1      kQ4, to the bit
//   Q4_K            kQ4: the codes, and scale and minimum of each group rounded to float16
//   MXFP4           kMx4, to the bit; scales outside of float16 become 0 or not a number
//   Q5_1, Q5_K, Q6_K  kQ8: rounded anew
// `interleaved_head`: the size of a head whose rows lie in the order of interleaved rotary embeddings, which the
// matrix does not show; 0: the rows lie as they are shown. `tensor` outlives it.
// REQUIRES: `tensor` has two or three extents and a type that can be read; the head size is even and divides the rows.
std::unique_ptr<StoredMatrix> MakeGgufMatrix(const GgufTensor& tensor, std::int64_t interleaved_head);

// The row of an interleaved tensor that holds row `row` of the model.
std::int64_t InterleavedRow(std::int64_t row, std::int64_t head_size);

}  // namespace loramux
