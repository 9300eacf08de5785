// The variants of the products of skinny.h.
#pragma once

#include <cstdint>

#include "gpu/kernels/packed.h"

namespace loramux::gpu {

// What the number of rows of x decides; variants by it. More rows read x more often from the L2 cache than w from
// memory, so a unit then has more rows of w for each row of x. The order of sums is the same in all of them.
inline constexpr int kSkinnyVariants = 4;
struct SkinnyExtent {
  int groups;  // most groups of 8 rows of x
  int tiles;   // tiles of 16 rows of w that a unit has
  int depth;   // steps of k in the ring
  int blocks;  // blocks that a multiprocessor holds: bounds the registers
};
template <typename T>
inline constexpr SkinnyExtent kSkinnyExtents[kSkinnyVariants] = {
    {1, 1, 8, 3}, {2, 1, 6, 3}, {4, 2, 4, 3}, {8, 2, 3, 2}};
// Without tensor cores a thread has the sums of all rows of x in registers.
template <>
inline constexpr SkinnyExtent kSkinnyExtents<float>[kSkinnyVariants] = {
    {1, 1, 8, 3}, {2, 1, 6, 3}, {4, 1, 4, 3}, {8, 1, 3, 2}};

inline constexpr int SkinnyVariant(std::int32_t max_rows) {
  return max_rows <= 8 ? 0 : max_rows <= 16 ? 1 : max_rows <= 32 ? 2 : 3;
}
// With weights in 8 bits the variants follow those of floats, then come those in 4 bits.
inline constexpr int kSkinnyForms = 3;
inline constexpr WeightFormat kSkinnyFormats[kSkinnyForms] = {WeightFormat::kF32, WeightFormat::kQ8, WeightFormat::kQ4};
inline int SkinnyFormOf(const PackedForm& form) {
  return form.scales == nullptr ? 0 : CodeBits(form.format) == 8 ? 1 : 2;
}
// Slots of the ring of quantised weights, which have twice the steps: in 4 and in 8 bits.
inline constexpr int kPackedDepths[2][kSkinnyVariants] = {{8, 5, 3, 2}, {6, 4, 2, 2}};

}  // namespace loramux::gpu
