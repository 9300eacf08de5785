// The names of the device kernels. Every backend has a table with one entry for each name and element type.
#pragma once

#include <cstdint>
#include <string_view>

namespace loramux::gpu {

// One kernel of kernels/kernel_list.h. A name stands for three instances, one for each element type (f32, bf16, f16).
enum class Kernel : std::uint8_t {
  kEmbedRows,  // kernels/elementwise.h
  kEmbedPositions,
  kNormRows,
  kGateMul,
  kGatherRows,
  kAddRows,
  kScaleRows,
  kPoolRows,
  kCopyPages,
  kEmbedOwnRows,  // kernels/own_rows.h
  kExcludeTokens,
  kOwnProducts,
  kReadAll,     // kernels/read_all.h
  kCausalConv,  // kernels/states.h
  kDeltaRule,
  kSelectiveScan,
  kGatedNorm,
  kMulSigmoid,
  kQkvPost,     // kernels/qkv_post.h
  kLoraShrink,  // kernels/lora.h
  kLoraExpand,
  kSkinnyMatMulLora,  // kernels/skinny.h
  kWidenPacked,       // kernels/packed.h
  kLoraQkvPost,       // kernels/lora_fused.h
  kLoraGateMul,
  kLoraNormRows,
  kRouteRows,  // kernels/experts.h
  kSortChosen,
  kListExperts,
  kExpertMatMul,
  kCombineChosen,
  kDecideLayer,  // kernels/assist.h
  kSendActivations,
  kAddAnswers,
  kPublishLayers,
  kAttentionDecode,  // kernels/attention.h
  kAttentionCombine,
  kAttentionPrefill,
  kArgmaxRows,  // kernels/sampling.h
  kSampleRows,
  kScoreRows,
  kCount,  // not a kernel
};

inline constexpr int kNumKernels = static_cast<int>(Kernel::kCount);

// The name as in the list above, without the `k`.
std::string_view NameOf(Kernel kernel);

}  // namespace loramux::gpu
