#include "gpu/kernels/experts.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/ceil_divide.h"
#include "base/check.h"
#include "gpu/kernels/expert_product_kernel.h"
#include "gpu/kernels/experts_kernels.h"
#include "gpu/kernels/route_kernel.h"

namespace loramux::gpu {
namespace {

template <typename T>
void LaunchProduct(DeviceStream& stream, DType dtype, int multiprocessors, std::int64_t max_tiles,
                   const ExpertMatMulArguments& arguments) {
  constexpr auto kSharedBytes = []<int... kAll>(std::integer_sequence<int, kAll...>) {
    return std::array{sizeof(typename SkinnyProductOf<T, kAll>::Memory)...};
  }
  (std::make_integer_sequence<int, ExpertMatMulKernel<T>::kVariants>());
  const auto variant = static_cast<std::size_t>(ExpertMatMulKernel<T>::VariantOf(arguments));
  const SkinnyExtent& extent = kSkinnyExtents<T>[SkinnyVariant(arguments.max_rows)];
  const std::int64_t units = CeilDivide(arguments.n, static_cast<std::int64_t>(16 * extent.tiles));
  // Twice what the device holds at once: tiles that do not exist leave at once.
  const std::int64_t resident = 2 * static_cast<std::int64_t>(std::max(1, multiprocessors)) * extent.blocks;
  const std::int64_t blocks = std::min(units, CeilDivide(resident, max_tiles));
  CHECK_LE(max_tiles, 65535);  // CUDA's limit
  Launch(stream, Kernel::kExpertMatMul, dtype,
         {static_cast<std::uint32_t>(blocks), static_cast<std::uint32_t>(max_tiles), 1},
         ExpertMatMulKernel<T>::kThreads, kSharedBytes[variant], arguments);
}

}  // namespace

ExpertBounds MaxExpertWork(const RouteForm& form, std::int64_t rows, std::int64_t ranges, std::int32_t max_rank) {
  const std::int64_t places = rows * form.per_token, experts = form.experts;
  ExpertBounds bounds;
  bounds.places = static_cast<std::int32_t>(places);
  bounds.tiles = static_cast<std::int32_t>(std::min(places, experts + places / kExpertTileRows));
  if (max_rank == 0) return bounds;
  // An expert's places are cut at multiples of kLoraItemRows, and where the adapter changes.
  const std::int64_t items = std::min(places, experts * (ranges + 1) + places / kLoraItemRows);
  const std::int64_t cut = std::min(items, places / (kLoraFewRows + 1));
  bounds.shrink = static_cast<std::int32_t>(items * CeilDivide(max_rank, kLoraRankTile));
  bounds.expand = static_cast<std::int32_t>(items + cut * (kLoraExpandTile / kLoraManyOutputs - 1));
  return bounds;
}

void RouteRows(DeviceStream& stream, std::int64_t max_rows, const RouteRowsArguments& arguments) {
  const RouteForm& form = arguments.form;
  CHECK(form.per_token >= 1 && form.per_token <= std::min(form.experts, kMostChosen));
  CHECK_LE(form.experts, kMostExperts);
  CHECK(form.groups == 1 || form.experts % form.groups == 0);
  if (max_rows == 0) return;
  const auto floats = static_cast<std::size_t>(2 * form.experts + form.groups);
  Launch(stream, Kernel::kRouteRows, DType::kF32, {static_cast<std::uint32_t>(max_rows), 1, 1},
         RouteRowsKernel<float>::kThreads, floats * sizeof(float), arguments);
}

void ListChosen(DeviceStream& stream, const ListChosenArguments& arguments) {
  const GridSize grid = {static_cast<std::uint32_t>(arguments.experts), 1, 1};
  Launch(stream, Kernel::kSortChosen, DType::kF32, grid, SortChosenKernel<float>::kThreads,
         sizeof(SortChosenKernel<float>::Memory), arguments);
  Launch(stream, Kernel::kListExperts, DType::kF32, grid, ListExpertsKernel<float>::kThreads, 0, arguments);
}

void ExpertMatMul(DeviceStream& stream, DType dtype, int multiprocessors, std::int64_t max_tiles,
                  const ExpertMatMulArguments& arguments) {
  CHECK(IsSkinny(dtype, arguments.max_rows, arguments.k));
  CHECK_EQ(reinterpret_cast<std::uintptr_t>(arguments.x) % 16, 0u);
  CHECK_EQ(reinterpret_cast<std::uintptr_t>(arguments.w) % 16, 0u);
  CHECK_EQ(arguments.x_stride % 8, 0);
  CHECK(arguments.form.scales == nullptr || (CanPack(arguments.k) && arguments.n % kPackedTile == 0));
  if (max_tiles == 0) return;
  switch (dtype) {
    case DType::kF32:
      return LaunchProduct<float>(stream, dtype, multiprocessors, max_tiles, arguments);
    case DType::kBF16:
      return LaunchProduct<Bf16>(stream, dtype, multiprocessors, max_tiles, arguments);
    case DType::kF16:
      return LaunchProduct<Half>(stream, dtype, multiprocessors, max_tiles, arguments);
    default:
      CHECK(IsWeightDType(dtype));
  }
}

void CombineChosen(DeviceStream& stream, std::int64_t max_rows, const CombineChosenArguments& arguments) {
  if (max_rows == 0) return;
  const std::int64_t parts = CeilDivide(arguments.width, kPartElements);
  Launch(stream, Kernel::kCombineChosen, DType::kF32,
         {static_cast<std::uint32_t>(max_rows), static_cast<std::uint32_t>(parts), 1}, kPartThreads, 0, arguments);
}

}  // namespace loramux::gpu
