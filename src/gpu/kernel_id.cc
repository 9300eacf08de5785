#include "gpu/kernel_id.h"

namespace loramux::gpu {

std::string_view NameOf(Kernel kernel) {
  switch (kernel) {
    case Kernel::kEmbedRows:
      return "EmbedRows";
    case Kernel::kNormRows:
      return "NormRows";
    case Kernel::kSiluMul:
      return "SiluMul";
    case Kernel::kGatherRows:
      return "GatherRows";
    case Kernel::kAddRows:
      return "AddRows";
    case Kernel::kPoolRows:
      return "PoolRows";
    case Kernel::kCopyPages:
      return "CopyPages";
    case Kernel::kReadAll:
      return "ReadAll";
    case Kernel::kQkvPost:
      return "QkvPost";
    case Kernel::kLoraShrink:
      return "LoraShrink";
    case Kernel::kLoraExpand:
      return "LoraExpand";
    case Kernel::kSkinnyMatMulLora:
      return "SkinnyMatMulLora";
    case Kernel::kLoraQkvPost:
      return "LoraQkvPost";
    case Kernel::kLoraSiluMul:
      return "LoraSiluMul";
    case Kernel::kLoraNormRows:
      return "LoraNormRows";
    case Kernel::kDecideLayer:
      return "DecideLayer";
    case Kernel::kSendActivations:
      return "SendActivations";
    case Kernel::kAddAnswers:
      return "AddAnswers";
    case Kernel::kPublishLayers:
      return "PublishLayers";
    case Kernel::kAttentionDecode:
      return "AttentionDecode";
    case Kernel::kAttentionCombine:
      return "AttentionCombine";
    case Kernel::kAttentionPrefill:
      return "AttentionPrefill";
    case Kernel::kArgmaxRows:
      return "ArgmaxRows";
    case Kernel::kSampleRows:
      return "SampleRows";
    case Kernel::kScoreRows:
      return "ScoreRows";
    case Kernel::kCount:
      break;
  }
  return "no kernel";
}

}  // namespace loramux::gpu
