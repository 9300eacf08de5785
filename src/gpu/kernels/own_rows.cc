#include "gpu/kernels/own_rows.h"

#include "base/ceil_divide.h"
#include "base/check.h"
#include "gpu/kernels/own_rows_kernels.h"

namespace loramux::gpu {

void EmbedOwnRows(DeviceStream& stream, std::int64_t max_rows, const EmbedOwnRowsArguments& arguments) {
  if (max_rows == 0) return;
  const std::int64_t parts = CeilDivide(arguments.width, kPartElements);
  Launch(stream, Kernel::kEmbedOwnRows, DType::kF32,
         {static_cast<std::uint32_t>(max_rows), static_cast<std::uint32_t>(parts), 1}, kPartThreads, 0, arguments);
}

void ExcludeTokens(DeviceStream& stream, std::int64_t max_rows, const ExcludeTokensArguments& arguments) {
  if (max_rows == 0 || arguments.width == 0) return;
  const std::int64_t parts = CeilDivide(arguments.width, kPartElements);
  Launch(stream, Kernel::kExcludeTokens, DType::kF32,
         {static_cast<std::uint32_t>(max_rows), static_cast<std::uint32_t>(parts), 1}, kPartThreads, 0, arguments);
}

void OwnProducts(DeviceStream& stream, DType dtype, std::int64_t max_rows, std::int64_t max_count,
                 const OwnProductsArguments& arguments) {
  if (max_rows == 0 || max_count == 0) return;
  const std::int64_t tiles = CeilDivide(max_rows, std::int64_t{kOwnTileRows});
  const std::int64_t parts = CeilDivide(max_count, std::int64_t{OwnProductsKernel<float>::kRows});
  CHECK_LE(parts, 65535);  // CUDA's limit: two million rows
  Launch(stream, Kernel::kOwnProducts, dtype, {static_cast<std::uint32_t>(tiles), static_cast<std::uint32_t>(parts), 1},
         OwnProductsKernel<float>::kThreads, 0, arguments);
}

}  // namespace loramux::gpu
