// Every kernel, for the tables of the backends. X(name, instance types): the struct is name##Kernel<T>.
//   LORAMUX_KERNELS(X)      X(name): instances for float, Bf16 and Half
//   LORAMUX_F32_KERNELS(X)  X(name): one instance, float
#pragma once

#include "gpu/kernels/assist_kernels.h"
#include "gpu/kernels/attention_decode_kernels.h"
#include "gpu/kernels/attention_prefill_kernel.h"
#include "gpu/kernels/elementwise_kernels.h"
#include "gpu/kernels/expert_product_kernel.h"
#include "gpu/kernels/experts_kernels.h"
#include "gpu/kernels/lora_fused_kernels.h"
#include "gpu/kernels/lora_kernels.h"
#include "gpu/kernels/norm_rows_kernel.h"
#include "gpu/kernels/own_rows_kernels.h"
#include "gpu/kernels/qkv_post_kernel.h"
#include "gpu/kernels/read_all_kernel.h"
#include "gpu/kernels/route_kernel.h"
#include "gpu/kernels/sampling_kernels.h"
#include "gpu/kernels/skinny_kernel.h"
#include "gpu/kernels/state_heads_kernel.h"
#include "gpu/kernels/states_kernels.h"

// The parts: the CUDA backend compiles each by itself.
#define LORAMUX_ELEMENTWISE_KERNELS(X) X(EmbedRows) X(EmbedPositions) X(NormRows) X(GateMul) X(PoolRows) X(OwnProducts)
#define LORAMUX_ELEMENTWISE_F32_KERNELS(X) \
  X(GatherRows) X(AddRows) X(ScaleRows) X(CopyPages) X(EmbedOwnRows) X(ExcludeTokens)
#define LORAMUX_LORA_KERNELS(X) X(LoraShrink)
#define LORAMUX_LORA_F32_KERNELS(X) X(LoraExpand)
#define LORAMUX_SKINNY_KERNELS(X) LORAMUX_LORA_FUSED_KERNELS(X) X(SkinnyMatMulLora) X(WidenPacked)
#define LORAMUX_LORA_FUSED_KERNELS(X) X(LoraQkvPost) X(LoraGateMul) X(LoraNormRows)
#define LORAMUX_EXPERT_KERNELS(X) X(ExpertMatMul)
#define LORAMUX_EXPERT_F32_KERNELS(X) X(RouteRows) X(SortChosen) X(ListExperts) X(CombineChosen)
#define LORAMUX_ATTENTION_KERNELS(X) X(QkvPost) X(AttentionDecode) X(AttentionCombine) X(AttentionPrefill)
#define LORAMUX_ASSIST_KERNELS(X) X(SendActivations)
#define LORAMUX_ASSIST_F32_KERNELS(X) X(DecideLayer) X(AddAnswers) X(PublishLayers)
#define LORAMUX_STATES_KERNELS(X) X(GatedNorm) X(MulSigmoid)
#define LORAMUX_STATES_F32_KERNELS(X) X(CausalConv) X(DeltaRule) X(SelectiveScan)
#define LORAMUX_SAMPLING_F32_KERNELS(X) X(ArgmaxRows) X(SampleRows) X(ScoreRows)
#define LORAMUX_MEASURING_F32_KERNELS(X) X(ReadAll)

#define LORAMUX_KERNELS(X)       \
  LORAMUX_ELEMENTWISE_KERNELS(X) \
  LORAMUX_LORA_KERNELS(X)        \
  LORAMUX_SKINNY_KERNELS(X)      \
  LORAMUX_EXPERT_KERNELS(X) LORAMUX_ASSIST_KERNELS(X) LORAMUX_ATTENTION_KERNELS(X) LORAMUX_STATES_KERNELS(X)
#define LORAMUX_F32_KERNELS(X)       \
  LORAMUX_ELEMENTWISE_F32_KERNELS(X) \
  LORAMUX_LORA_F32_KERNELS(X)        \
  LORAMUX_EXPERT_F32_KERNELS(X)      \
  LORAMUX_STATES_F32_KERNELS(X)      \
  LORAMUX_ASSIST_F32_KERNELS(X) LORAMUX_SAMPLING_F32_KERNELS(X) LORAMUX_MEASURING_F32_KERNELS(X)
