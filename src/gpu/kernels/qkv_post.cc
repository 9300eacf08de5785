#include "gpu/kernels/qkv_post.h"

#include "base/check.h"
#include "gpu/kernels/attention.h"

namespace loramux::gpu {

void QkvPost(DeviceStream& stream, DType kv_dtype, std::int64_t max_rows, const QkvPostArguments& arguments) {
  const PagesOnDevice& pages = arguments.pages;
  CHECK(pages.head_dim > 0 && pages.head_dim <= kMaxHeadDim && pages.head_dim % 2 == 0);
  if (max_rows <= 0) return;
  constexpr std::int32_t kWarps = 4;  // a head each
  const std::int32_t heads = arguments.num_heads + 2 * pages.num_kv_heads;
  const auto y = static_cast<std::uint32_t>((heads + kWarps - 1) / kWarps);
  Launch(stream, Kernel::kQkvPost, kv_dtype, {static_cast<std::uint32_t>(max_rows), y, 1}, 32 * kWarps, 0, arguments);
}

}  // namespace loramux::gpu
