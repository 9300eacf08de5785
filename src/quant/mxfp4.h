// Matrices in MXFP4: experts as gpt-oss is published, and layers as compressed-tensors writes them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "quant/model_source.h"
#include "quant/tensor_finder.h"

namespace loramux {

// The largest and the least exponent, with MXFP4's bias of 127, whose scale float16 holds as kMx4 needs it.
inline constexpr int kMostMx4Exponent = 128 + 15, kLeastMx4Exponent = 128 - 24;

// The matrices of all experts in "NAME_blocks" U8 [experts, rows, columns / 32, 16] and "NAME_scales" U8 [experts,
// rows, columns / 32]: 32 neighbouring inputs have an exponent of two, and two of them share a byte, the first in its
// low half. Null if there are none. Errors: a tensor is missing or has another shape; an exponent that no scale in
// memory holds.
Result<std::shared_ptr<const StoredMatrix>> FindMxfp4Experts(TensorFinder& finder, const std::string& name,
                                                             const ModelSource::StackedShape& shape);

// The same of one layer, as compressed-tensors writes it: "NAME.weight_packed" U8 [rows, columns / 2] and
// "NAME.weight_scale" U8 [rows, columns / 32].
Result<std::shared_ptr<const StoredMatrix>> RequireMxfp4Matrix(TensorFinder& finder, const std::string& name,
                                                               std::int64_t rows, std::int64_t columns);

// One group: its scale in memory, and the codes of kQ8 of its 16 bytes. With `halves`, the low halves come first, as in
// GGUF; else both halves of a byte are neighbours.
struct Mx4Group {
  float scale = 0;
  std::uint8_t codes[kWeightGroup] = {};
};
Mx4Group ReadMx4Group(std::uint8_t exponent, const std::byte* bytes, bool halves);

}  // namespace loramux
