// The layout of quantised weights in memory, and in the files of `loramux quantize`.
//
// A panel has 32 outputs. Its groups of 32 inputs follow each other; a group is
//   scales    32 float16, one for each output
//   minimums  32 float16, kQ4 only
//   codes     kQ8: 8 quads of 128 bytes. Quad q holds, output by output, the codes of inputs 4q to 4q + 3.
//             kQ4, kMx4: 4 pairs of 128 bytes. Pair p holds quad 2p in the low and quad 2p + 1 in the high half of each
//             byte.
// So a 32-bit lane holds four neighbouring inputs of an output: the operand of the integer dot products of x86 and ARM.
// One layout serves one row and many.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/grouped_rows.h"
#include "tensor/weight_format.h"

namespace loramux {

inline constexpr std::int64_t kPanelOutputs = 32;

inline constexpr std::int64_t kQuad = 4;                                               // inputs in a lane
inline constexpr std::int64_t kQuads = kWeightGroup / kQuad;                           // quads of a group
inline constexpr std::int64_t kQuadBytes = kPanelOutputs * kQuad;                      // bytes of a quad of all outputs
inline constexpr std::int64_t kHalfsBytes = kPanelOutputs * 2;                         // scales, or minimums
inline constexpr std::int64_t kQ8PanelGroupBytes = kHalfsBytes + kQuads * kQuadBytes;  // 1,088
inline constexpr std::int64_t kQ4PanelGroupBytes = 2 * kHalfsBytes + kQuads / 2 * kQuadBytes;  // 640
inline constexpr std::int64_t kMx4PanelGroupBytes = kHalfsBytes + kQuads / 2 * kQuadBytes;     // 576

// Panels of `rows` outputs, and the bytes of one. REQUIRES: IsQuantised(format).
constexpr std::int64_t PanelsOf(std::int64_t rows) { return (rows + kPanelOutputs - 1) / kPanelOutputs; }
inline std::int64_t PanelBytes(WeightFormat format, std::int64_t k) {
  return kPanelOutputs * static_cast<std::int64_t>(WeightRowBytes(format, k));
}

// A group of one output, as numbers: value = scale * (code - zero) + minimum.
struct OutputGroup {
  float scale = 0, minimum = 0;
  int zero = 0;  // kQ8Zero, or 0; kMx4 as kQ8
  std::uint8_t codes[kWeightGroup] = {};
};

// Reads group `group` of output `output` of a panel.
OutputGroup ReadGroup(WeightFormat format, const std::byte* panel, std::int64_t output, std::int64_t group);
// Writes row `row` of `source` as output `output` of a panel.
void PackGroupRow(const GroupedRows& source, std::int64_t row, std::int64_t output, std::byte* panel);
// Reads output `output` of a panel of `k` inputs as float32.
void UnpackGroupRow(WeightFormat format, const std::byte* panel, std::int64_t output, std::int64_t k, float* out);

}  // namespace loramux
