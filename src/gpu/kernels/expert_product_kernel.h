// The products of places with their experts' matrices: SkinnyProduct for each tile.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/experts.h"
#include "gpu/kernels/skinny_kernel.h"

namespace loramux::gpu {

// Grid: blocks that share the outputs of a tile; tiles. The variants of the second half have weights in 4 bits.
template <typename T>
struct ExpertMatMulKernel {
  using Arguments = ExpertMatMulArguments;
  static constexpr int kThreads = 32 * kLoraWarps;
  static constexpr int kMinBlocks = 2;
  static constexpr int kVariants = 2 * kSkinnyVariants;
  static constexpr int MinBlocks(int variant) { return kSkinnyExtents<T>[variant % kSkinnyVariants].blocks; }
  static int VariantOf(const Arguments& a) {
    return SkinnyVariant(a.max_rows) + (a.scales != nullptr ? kSkinnyVariants : 0);
  }

  template <int kVariant>
  using Product = SkinnyProduct<T, kVariant % kSkinnyVariants, (kVariant >= kSkinnyVariants)>;

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    if (a.scales != nullptr) return RunOf<kSkinnyVariants>(a);
    RunOf<0>(a);
  }

  template <int kVariant>
  LORAMUX_DEVICE static void RunVariant(const Arguments& a) {
    const auto index = static_cast<std::int32_t>(BlockY());
    if (index >= Load(a.tile_count)) return;
    const ExpertTile* tile = a.tiles + index;
    const std::int64_t expert = Load(&tile->expert), first = Load(&tile->first);
    SkinnyMatMulLoraArguments of_tile = {};
    of_tile.lora.x = static_cast<const T*>(a.x) + first * a.x_stride;
    of_tile.lora.x_stride = a.x_stride;
    of_tile.lora.in = a.k;
    of_tile.n = a.n;
    if (a.bias != nullptr) of_tile.bias = a.bias + expert * a.n;
    of_tile.y = a.y + first * a.y_stride;
    of_tile.y_stride = a.y_stride;
    const std::int64_t weights = expert * a.n * a.k;
    const std::int32_t rows = Load(&tile->rows);
    if constexpr (kVariant >= kSkinnyVariants) {
      of_tile.w = static_cast<const std::uint8_t*>(a.w) + weights / 2;
      Product<kVariant>(of_tile, rows, a.scales + weights / kMx4Group).Run();
    } else {
      of_tile.w = static_cast<const T*>(a.w) + weights;
      Product<kVariant>(of_tile, rows).Run();
    }
  }

 private:
  template <int kFirst>
  LORAMUX_DEVICE static void RunOf(const Arguments& a) {
    switch (SkinnyVariant(a.max_rows)) {
      case 0:
        return RunVariant<kFirst>(a);
      case 1:
        return RunVariant<kFirst + 1>(a);
      case 2:
        return RunVariant<kFirst + 2>(a);
      default:
        return RunVariant<kFirst + 3>(a);
    }
  }
};

}  // namespace loramux::gpu
