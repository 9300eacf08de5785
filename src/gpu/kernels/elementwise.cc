#include "gpu/kernels/elementwise.h"

#include <algorithm>

#include "base/check.h"
#include "gpu/kernels/elementwise_kernels.h"
#include "gpu/kernels/norm_rows_kernel.h"

namespace loramux::gpu {
namespace {

GridSize PartsOf(std::int64_t rows, std::int64_t width, std::int64_t part) {
  const std::int64_t parts = (width + part - 1) / part;
  CHECK_LE(parts, 65535);  // CUDA's limit
  return {static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(parts), 1};
}

// A kernel without meetings, whose block (row, part) has kPartElements elements.
template <typename Arguments>
void LaunchParts(DeviceStream& stream, Kernel kernel, DType dtype, std::int64_t rows, const Arguments& arguments) {
  if (rows == 0) return;
  Launch(stream, kernel, dtype, PartsOf(rows, arguments.width, kPartElements), kPartThreads, 0, arguments);
}

}  // namespace

void EmbedRows(DeviceStream& stream, DType dtype, std::int64_t max_rows, const EmbedRowsArguments& arguments) {
  LaunchParts(stream, Kernel::kEmbedRows, dtype, max_rows, arguments);
}

void EmbedPositions(DeviceStream& stream, DType dtype, std::int64_t max_rows,
                    const EmbedPositionsArguments& arguments) {
  LaunchParts(stream, Kernel::kEmbedPositions, dtype, max_rows, arguments);
}

std::uint32_t NormThreads(std::int64_t width) {
  const std::int64_t warps = (width + 32 * kGroup - 1) / (32 * kGroup);
  return static_cast<std::uint32_t>(std::min<std::int64_t>(warps * 32, NormRowsKernel<float>::kThreads));
}

void NormRows(DeviceStream& stream, DType dtype, std::int64_t max_rows, const NormRowsArguments& arguments) {
  if (max_rows == 0) return;
  Launch(stream, Kernel::kNormRows, dtype, {static_cast<std::uint32_t>(max_rows), 1, 1}, NormThreads(arguments.width),
         sizeof(NormRowsKernel<float>::Memory), arguments);
}

void GateMul(DeviceStream& stream, DType dtype, std::int64_t max_rows, const GateMulArguments& arguments) {
  LaunchParts(stream, Kernel::kGateMul, dtype, max_rows, arguments);
}

void GatherRows(DeviceStream& stream, std::int64_t max_rows, const GatherRowsArguments& arguments) {
  LaunchParts(stream, Kernel::kGatherRows, DType::kF32, max_rows, arguments);
}

void AddRows(DeviceStream& stream, std::int64_t max_rows, const AddRowsArguments& arguments) {
  LaunchParts(stream, Kernel::kAddRows, DType::kF32, max_rows, arguments);
}

void ScaleRows(DeviceStream& stream, std::int64_t max_rows, const ScaleRowsArguments& arguments) {
  LaunchParts(stream, Kernel::kScaleRows, DType::kF32, max_rows, arguments);
}

void PoolRows(DeviceStream& stream, DType dtype, std::int64_t num_ranges, const PoolRowsArguments& arguments) {
  LaunchParts(stream, Kernel::kPoolRows, dtype, num_ranges, arguments);
}

void CopyPages(DeviceStream& stream, std::int64_t num_copies, const CopyPagesArguments& arguments) {
  if (num_copies == 0) return;
  CHECK_EQ(arguments.page_bytes % 16, 0);
  Launch(stream, Kernel::kCopyPages, DType::kF32,
         PartsOf(num_copies, arguments.page_bytes, CopyPagesKernel<float>::kPart), CopyPagesKernel<float>::kThreads, 0,
         arguments);
}

}  // namespace loramux::gpu
