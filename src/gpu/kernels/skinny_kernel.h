// The kernel of skinny.h. Blocks take units of work by a fixed stride: first rows of w, then the units of the shrink.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "gpu/kernel_api.h"
#include "gpu/kernels/lora_shrink_kernel.h"
#include "gpu/kernels/skinny.h"
#include "gpu/kernels/skinny_product.h"

namespace loramux::gpu {

// Calls run with the number of a variant, for Run of kernels that have them.
template <int kVariants, typename F>
void RunVariantOf(int variant, const F& run) {
  const auto pick = [&]<int... kAll>(std::integer_sequence<int, kAll...>) {
    ((kAll == variant ? run(std::integral_constant<int, kAll>()) : void()), ...);
  };
  pick(std::make_integer_sequence<int, kVariants>());
}
// The product of a variant; its memory is the same for all formats of as many bits.
template <typename T, int kVariant, WeightFormat kFormat = kSkinnyFormats[kVariant / kSkinnyVariants]>
using SkinnyProductOf = SkinnyProduct<T, kVariant % kSkinnyVariants, kFormat>;

template <typename T, int kVariant>
LORAMUX_DEVICE void RunSkinnyProduct(const SkinnyMatMulLoraArguments& a, std::int32_t rows) {
  constexpr WeightFormat kFormat = kSkinnyFormats[kVariant / kSkinnyVariants];
  constexpr WeightFormat kOther = kFormat == WeightFormat::kQ8   ? WeightFormat::kF8
                                  : kFormat == WeightFormat::kQ4 ? WeightFormat::kMx4
                                                                 : kFormat;
  if (kFormat != kOther && a.form.format == kOther)
    SkinnyProductOf<T, kVariant, kOther>(a, rows).Run();
  else
    SkinnyProductOf<T, kVariant>(a, rows).Run();
}

template <typename T>
struct SkinnyMatMulLoraKernel {
  using Arguments = SkinnyMatMulLoraArguments;
  static constexpr int kThreads = 32 * kLoraWarps;
  static constexpr int kMinBlocks = 2;
  static constexpr int kVariants = kSkinnyForms * kSkinnyVariants;
  static constexpr int MinBlocks(int variant) { return kSkinnyExtents<T>[variant % kSkinnyVariants].blocks; }
  static int VariantOf(const Arguments& a) {
    return SkinnyVariant(a.max_rows) + SkinnyFormOf(a.form) * kSkinnyVariants;
  }

  // Shared memory; the shrink's units lie where the product's ring was.
  template <int kVariant>
  static constexpr std::size_t SharedBytes() {
    constexpr std::size_t product = sizeof(typename SkinnyProductOf<T, kVariant>::Memory);
    constexpr std::size_t shrink = sizeof(T) == 2 ? sizeof(LoraTileShared) : sizeof(LoraPlainShared);
    return product > shrink ? product : shrink;
  }

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    RunVariantOf<kVariants>(VariantOf(a), [&](auto variant) { RunVariant<decltype(variant)::value>(a); });
  }

  template <int kVariant>
  LORAMUX_DEVICE static void RunVariant(const Arguments& arguments) {
    const std::int32_t rows = Rows(arguments);
    if (rows <= 0) return;
    const std::int64_t units = SkinnyProductOf<T, kVariant>::Units(arguments.n);
    if (BlockX() < units) RunSkinnyProduct<T, kVariant>(arguments, rows);
    RunShrink(arguments, units);
  }

 private:
  LORAMUX_DEVICE static std::int32_t Rows(const Arguments& a) {
    const std::int32_t rows = Load(a.rows) - a.first_row;
    return rows < a.max_rows ? rows : a.max_rows;
  }

  // The block's units beyond the first `before`.
  LORAMUX_DEVICE static void RunShrink(const Arguments& arguments, std::int64_t before) {
    const LoraShrinkArguments& lora = arguments.lora;
    if (lora.slices == 0) return;
    const std::int64_t items = Load(lora.work.shrink_count);
    const std::int64_t splits = (lora.in + kLoraSplit - 1) / kLoraSplit;
    const std::int64_t count = items * splits * lora.slices;
    const std::int64_t rounds = before <= BlockX() ? 0 : (before - BlockX() + GridX() - 1) / GridX();
    for (std::int64_t unit = BlockX() + rounds * GridX() - before; unit < count; unit += GridX()) {
      SyncBlock();  // what lay in shared memory has been read
      const std::int64_t rest = unit / items;
      LoraShrinkUnit<T>(lora, static_cast<std::int32_t>(unit % items), rest % splits,
                        static_cast<std::int32_t>(rest / splits));
    }
  }
};

}  // namespace loramux::gpu
