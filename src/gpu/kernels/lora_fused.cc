#include "gpu/kernels/lora_fused.h"

#include "base/ceil_divide.h"
#include "base/check.h"
#include "gpu/kernels/attention.h"
#include "gpu/kernels/lora_fused_kernels.h"

namespace loramux::gpu {
namespace {

GridSize Grid(std::int64_t tiles, const LoraExpandArguments& expand) {
  CHECK(expand.slices >= 1 && expand.slices <= kMaxLoraSlices);
  CHECK(expand.work.max_pieces > 0 && expand.work.max_pieces <= 65535);
  return {static_cast<std::uint32_t>(tiles), static_cast<std::uint32_t>(expand.work.max_pieces), 1};
}

}  // namespace

void LoraQkvPost(DeviceStream& stream, DType kv_dtype, const LoraQkvPostArguments& arguments) {
  const PagesOnDevice& pages = arguments.qkv.pages;
  CHECK_EQ(arguments.qkv.q_head_stride, 0);
  CHECK(pages.head_dim > 0 && pages.head_dim <= kMaxHeadDim && pages.head_dim % 2 == 0);
  // A tile of outputs, and a multiple of 4 elements.
  const std::int32_t heads = kLoraExpandTile / pages.head_dim / 2 * 2;
  LoraQkvPostArguments with_tiles = arguments;
  with_tiles.heads_of_tile = heads;
  const std::int64_t tiles = CeilDivide(arguments.qkv.num_heads, heads) + 2 * CeilDivide(pages.num_kv_heads, heads);
  Launch(stream, Kernel::kLoraQkvPost, kv_dtype, Grid(tiles, arguments.expand), LoraQkvPostKernel<float>::kThreads,
         sizeof(LoraFewShared), with_tiles);
}

void LoraGateMul(DeviceStream& stream, DType dtype, const LoraGateMulArguments& arguments) {
  Launch(stream, Kernel::kLoraGateMul, dtype, Grid(CeilDivide(arguments.gate.width, kLoraExpandTile), arguments.expand),
         LoraGateMulKernel<float>::kThreads, sizeof(LoraFewShared), arguments);
}

void LoraNormRows(DeviceStream& stream, DType dtype, const LoraNormRowsArguments& arguments) {
  CHECK_EQ(arguments.expand.slices, 1);
  CHECK(arguments.norm.added != nullptr && arguments.norm.added == arguments.expand.y[0]);
  Launch(stream, Kernel::kLoraNormRows, dtype, Grid(1, arguments.expand), NormThreads(arguments.norm.width),
         sizeof(LoraFewShared), arguments);
}

}  // namespace loramux::gpu
