// The products of places with their experts' matrices: SkinnyProduct for each tile.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/experts.h"
#include "gpu/kernels/skinny_kernel.h"

namespace loramux::gpu {

// Grid: blocks that share the outputs of a tile; tiles. Variants as those of SkinnyMatMulLora.
template <typename T>
struct ExpertMatMulKernel {
  using Arguments = ExpertMatMulArguments;
  static constexpr int kThreads = 32 * kLoraWarps;
  static constexpr int kMinBlocks = 2;
  static constexpr int kVariants = SkinnyMatMulLoraKernel<T>::kVariants;
  static constexpr int MinBlocks(int variant) { return SkinnyMatMulLoraKernel<T>::MinBlocks(variant); }
  static int VariantOf(const Arguments& a) {
    return SkinnyVariant(a.max_rows) + SkinnyFormOf(a.form) * kSkinnyVariants;
  }

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    RunVariantOf<kVariants>(VariantOf(a), [&](auto variant) { RunVariant<decltype(variant)::value>(a); });
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
    const std::int32_t rows = Load(&tile->rows);
    if constexpr (kVariant >= kSkinnyVariants) {
      of_tile.form = a.form;
      of_tile.w = static_cast<const std::uint8_t*>(a.w) + PackedOffset(a.form.format, a.k, expert * a.n, 0);
      const std::int64_t scale = PackedScaleIndex(a.form.group_shift, a.k, expert * a.n, 0);
      of_tile.form.scales += scale << ShiftOfScale(a.form.format);
    } else {
      of_tile.w = static_cast<const T*>(a.w) + expert * a.n * a.k;
    }
    RunSkinnyProduct<T, kVariant>(of_tile, rows);
  }
};

}  // namespace loramux::gpu
