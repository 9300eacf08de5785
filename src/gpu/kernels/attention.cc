#include "gpu/kernels/attention.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "gpu/kernels/attention_decode_kernels.h"
#include "gpu/kernels/attention_prefill_kernel.h"

namespace loramux::gpu {
namespace {

// Blocks of a launch that are enough to fill any GPU; the decode kernel's blocks take further chunks in turn.
constexpr std::int64_t kMaxDecodeBlocks = 16384;

void CheckArguments(const AttentionArguments& arguments) {
  const std::int32_t head_dim = arguments.pages.head_dim;
  CHECK(head_dim > 0 && head_dim <= kMaxHeadDim && head_dim % 2 == 0);
  CHECK(arguments.q_stride % 2 == 0 && arguments.out_stride % 2 == 0);
  CHECK_EQ(arguments.num_heads % arguments.pages.num_kv_heads, 0);
  CHECK(arguments.form.window >= 0);
  CHECK(arguments.pages.page_stride >= 0 && arguments.pages.page_stride <= std::numeric_limits<std::uint32_t>::max());
}

std::uint32_t Extent(std::int64_t blocks) { return static_cast<std::uint32_t>(blocks); }

struct LaunchShape {
  std::uint32_t threads;
  std::size_t shared_bytes;
  std::int64_t block_rows;
};

template <typename T>
LaunchShape DecodeShape(std::int32_t head_dim) {
  return VisitHeadDim(head_dim, []<int kDim>() {
    return LaunchShape{32, sizeof(AttentionShared<T, kDim, 1>), kAttentionWarpRows};
  });
}

template <typename T>
LaunchShape PrefillShape(std::int32_t head_dim) {
  return VisitHeadDim(head_dim, []<int kDim>() {
    return LaunchShape{ExtentsOf<T, kDim>::kThreads, sizeof(PrefillShared<T, kDim>), ExtentsOf<T, kDim>::kBlockRows};
  });
}

}  // namespace

void AttentionWorkLists::Clear() {
  chunks.clear();
  decode_rows.clear();
  tiles.clear();
}

void AttentionWorkLists::AddDecodeRow(std::int32_t row, std::int64_t position, std::int64_t window) {
  const std::int64_t first = window > 0 ? std::max<std::int64_t>(0, position - window + 1) : 0;
  const auto first_chunk = static_cast<std::int32_t>(first / kAttentionChunk);
  decode_rows.push_back({row, static_cast<std::int32_t>(chunks.size()), first_chunk});
  for (std::int32_t chunk = first_chunk; chunk <= position / kAttentionChunk; ++chunk) chunks.push_back({row, chunk});
}

void AttentionWorkLists::AddPrefill(std::int32_t sequence, std::int64_t rows) {
  for (std::int32_t first = 0; first < rows; first += kPrefillTile) tiles.push_back({sequence, first});
}

std::int64_t AttentionPartialFloats(std::int64_t max_chunks, std::int64_t num_heads, std::int64_t head_dim) {
  return max_chunks * num_heads * PartialStride(static_cast<std::int32_t>(head_dim));
}

void AttentionDecode(DeviceStream& stream, DType kv_dtype, std::int64_t max_rows, std::int64_t max_chunks,
                     const AttentionArguments& arguments) {
  CheckArguments(arguments);
  if (max_rows <= 0) return;
  const std::int32_t head_dim = arguments.pages.head_dim;
  const LaunchShape shape = DTypeSize(kv_dtype) == 4 ? DecodeShape<float>(head_dim) : DecodeShape<Bf16>(head_dim);
  const std::int64_t num_kv_heads = arguments.pages.num_kv_heads, group = arguments.num_heads / num_kv_heads;
  const std::int64_t y = num_kv_heads * ((group + kAttentionWarpRows - 1) / kAttentionWarpRows);
  const std::int64_t x = std::min(max_chunks, std::max<std::int64_t>(1, kMaxDecodeBlocks / y));
  Launch(stream, Kernel::kAttentionDecode, kv_dtype, {Extent(x), Extent(y), 1}, shape.threads, shape.shared_bytes,
         arguments);
  const std::uint32_t threads = Extent((head_dim / 2 + 31) / 32 * 32);
  Launch(stream, Kernel::kAttentionCombine, kv_dtype, {Extent(max_rows), Extent(arguments.num_heads), 1}, threads, 0,
         arguments);
}

void AttentionPrefill(DeviceStream& stream, DType kv_dtype, std::int64_t max_tiles,
                      const AttentionArguments& arguments) {
  CheckArguments(arguments);
  if (max_tiles <= 0) return;
  const std::int32_t head_dim = arguments.pages.head_dim;
  const LaunchShape shape = DTypeSize(kv_dtype) == 4 ? PrefillShape<float>(head_dim) : PrefillShape<Bf16>(head_dim);
  const std::int64_t pairs = kPrefillTile * (arguments.num_heads / arguments.pages.num_kv_heads);
  const std::int64_t blocks = (pairs + shape.block_rows - 1) / shape.block_rows;
  Launch(stream, Kernel::kAttentionPrefill, kv_dtype,
         {Extent(max_tiles), Extent(arguments.pages.num_kv_heads), Extent(blocks)}, shape.threads, shape.shared_bytes,
         arguments);
}

}  // namespace loramux::gpu
