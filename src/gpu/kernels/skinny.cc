#include "gpu/kernels/skinny.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/ceil_divide.h"
#include "base/check.h"
#include "gpu/kernels/skinny_kernel.h"

namespace loramux::gpu {
namespace {

template <typename T>
void LaunchSkinny(DeviceStream& stream, DType dtype, int multiprocessors, const SkinnyMatMulLoraArguments& arguments) {
  using Kernel_ = SkinnyMatMulLoraKernel<T>;
  constexpr auto kSharedBytes = []<int... kAll>(std::integer_sequence<int, kAll...>) {
    return std::array{Kernel_::template SharedBytes<kAll>()...};
  }
  (std::make_integer_sequence<int, Kernel_::kVariants>());
  const SkinnyExtent& extent = kSkinnyExtents<T>[SkinnyVariant(arguments.max_rows)];
  const LoraShrinkArguments& lora = arguments.lora;
  const std::int64_t units = CeilDivide(arguments.n, static_cast<std::int64_t>(16 * extent.tiles)) +
                             lora.work.max_shrink * CeilDivide(lora.in, kLoraSplit) * lora.slices;
  const std::int64_t blocks =
      std::min<std::int64_t>(units, static_cast<std::int64_t>(std::max(1, multiprocessors)) * extent.blocks);
  Launch(stream, Kernel::kSkinnyMatMulLora, dtype, {static_cast<std::uint32_t>(blocks), 1, 1}, Kernel_::kThreads,
         kSharedBytes[static_cast<std::size_t>(Kernel_::VariantOf(arguments))], arguments);
}

}  // namespace

bool IsSkinny(DType dtype, std::int64_t max_rows, std::int64_t k) {
  return max_rows <= kSkinnyRows && k % (16 / static_cast<std::int64_t>(DTypeSize(dtype))) == 0;
}

void SkinnyMatMulLora(DeviceStream& stream, DType dtype, int multiprocessors,
                      const SkinnyMatMulLoraArguments& arguments) {
  const LoraShrinkArguments& lora = arguments.lora;
  CHECK(IsSkinny(dtype, arguments.max_rows, lora.in));
  CHECK(lora.slices >= 0 && lora.slices <= kMaxLoraSlices);
  CHECK_EQ(reinterpret_cast<std::uintptr_t>(lora.x) % 16, 0u);
  CHECK_EQ(reinterpret_cast<std::uintptr_t>(arguments.w) % 16, 0u);
  CHECK_EQ(lora.x_stride % 8, 0);
  CHECK(arguments.form.scales == nullptr || CanPack(lora.in));
  CHECK_LE(lora.in, std::int64_t{1} << 30);
  CHECK(arguments.first_row == 0 || lora.slices == 0);
  if (arguments.max_rows == 0 || lora.in == 0 || arguments.n == 0) return;
  switch (dtype) {
    case DType::kF32:
      return LaunchSkinny<float>(stream, dtype, multiprocessors, arguments);
    case DType::kBF16:
      return LaunchSkinny<Bf16>(stream, dtype, multiprocessors, arguments);
    case DType::kF16:
      return LaunchSkinny<Half>(stream, dtype, multiprocessors, arguments);
    default:
      CHECK(IsWeightDType(dtype));
  }
}

}  // namespace loramux::gpu
