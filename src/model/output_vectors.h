// What DoRA and biases make of a linear layer's outputs, computed once when an adapter is loaded.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "formats/adapter_config.h"
#include "model/base_matrix.h"
#include "model/length_cache.h"

namespace loramux {

// Fills AdapterFile::vectors of the modules that have any, as PEFT computes such a layer:
//   y = gains * (W x + base bias + scale B (A x)) + shifts
//   gains = magnitude / |W + scale B A| of each row; 1 without DoRA
//   shifts = bias + scale * b_bias - gains * base bias, where `bias` is the adapter's, else the base's: DoRA scales no
//   bias
// Of the embedding, W is the transposed matrix: a length is that of an element of all rows.
// W is read in blocks, as the model computes with it, so quantised weights count as what they stand for. Takes about as
// many multiply-adds as W has elements, times the rank; of modules whose lengths `cache` has, none. `cache`, if given,
// is always of the same base model. Returns how many of the modules with DoRA it had. Errors: kIoError;
// kInvalidArgument: a row of W + scale B A has no length, or a result is not finite.
Result<std::int64_t> ComputeVectors(const BaseMatrices& base, AdapterFile& file, LengthCache* cache = nullptr);

}  // namespace loramux
