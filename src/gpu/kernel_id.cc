#include "gpu/kernel_id.h"

#include <array>

namespace loramux::gpu {
namespace {

// In the order of the list.
constexpr std::array<std::string_view, kNumKernels> kNames = {
    "EmbedRows",        "EmbedPositions",   "NormRows",        "GateMul",          "GatherRows",    "AddRows",
    "ScaleRows",        "PoolRows",         "CopyPages",       "EmbedOwnRows",     "ExcludeTokens", "OwnProducts",
    "ReadAll",          "CausalConv",       "DeltaRule",       "SelectiveScan",    "GatedNorm",     "MulSigmoid",
    "QkvPost",          "LoraShrink",       "LoraExpand",      "SkinnyMatMulLora", "WidenPacked",   "LoraQkvPost",
    "LoraGateMul",      "LoraNormRows",     "RouteRows",       "SortChosen",       "ListExperts",   "ExpertMatMul",
    "CombineChosen",    "DecideLayer",      "SendActivations", "AddAnswers",       "PublishLayers", "AttentionDecode",
    "AttentionCombine", "AttentionPrefill", "ArgmaxRows",      "SampleRows",       "ScoreRows",
};
static_assert(!kNames.back().empty());

}  // namespace

std::string_view NameOf(Kernel kernel) {
  const auto index = static_cast<std::size_t>(kernel);
  return index < kNames.size() ? kNames[index] : "no kernel";
}

}  // namespace loramux::gpu
