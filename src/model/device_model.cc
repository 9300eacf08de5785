#include "model/device_model.h"

#include <string>
#include <utility>

#include "assist/assist_pool.h"
#include "base/check.h"
#include "gpu/kernels/attention.h"
#include "gpu/kernels/experts.h"
#include "gpu/kernels/states.h"
#include "model/device_workspace.h"
#include "model/gpu_ops.h"
#include "model/step_graphs.h"

namespace loramux {
namespace {

Status CheckExperts(const ExpertsConfig& experts, std::int64_t hidden_size) {
  const auto refuse = [](const std::string& what, std::int64_t most, std::int64_t found, const char* param) {
    return Unsupported("a device computes mixtures of experts with " + what + " " + std::to_string(most) +
                           ", but the model has " + std::to_string(found) + "; the CPU computes it",
                       param);
  };
  constexpr std::int64_t kMultiple = 8;  // rows of the experts' matrices are read 16 bytes at a time
  if (experts.route.experts > gpu::kMostExperts)
    return refuse("a number of experts of at most", gpu::kMostExperts, experts.route.experts, "num_experts");
  if (experts.route.per_token > gpu::kMostChosen)
    return refuse("experts for each token of at most", gpu::kMostChosen, experts.route.per_token,
                  "num_experts_per_tok");
  if (experts.intermediate_size % kMultiple != 0)
    return refuse("an intermediate size that is a multiple of", kMultiple, experts.intermediate_size,
                  "moe_intermediate_size");
  if (hidden_size % kMultiple != 0)
    return refuse("a hidden size that is a multiple of", kMultiple, hidden_size, "hidden_size");
  return Ok{};
}

Status CheckStates(const RecurrentConfig& states) {
  const auto refuse = [](const std::string& what, std::int64_t most, std::int64_t found, const char* param) {
    return Unsupported("a device computes recurrent layers with " + what + " at most " + std::to_string(most) +
                           ", but the model has " + std::to_string(found) + "; start with --device cpu",
                       param);
  };
  if (states.key_dim > gpu::kMaxKeyDim)
    return refuse("keys of", gpu::kMaxKeyDim, states.key_dim, states.mamba ? "mamba_d_state" : "linear_key_head_dim");
  if (states.conv_width > gpu::kMaxConvWidth)
    return refuse("convolutions over", gpu::kMaxConvWidth, states.conv_width,
                  states.mamba ? "mamba_d_conv" : "linear_conv_kernel_dim");
  constexpr std::int64_t kMostBytes = std::int64_t{4} << 30;  // kernels count in 32 bits
  if (states.StateBytes() > kMostBytes)
    return refuse("bytes of states of a sequence of", kMostBytes, states.StateBytes(), "layer_types");
  return Ok{};
}

// Error: a model that the kernels cannot compute.
Status CheckSupported(const ModelConfig& config) {
  if (config.other_heads || config.value_norm || config.layer_scales || config.layer_input_size > 0) {
    return Unsupported(std::string("a device does not compute models of family ") + ModelFamilyName(config.family) +
                           " yet, whose layers differ in their heads; start with --device cpu",
                       "per_layer_config");
  }
  using Norm = RecurrentConfig::Norm;
  const bool beside = config.recurrent && (config.recurrent->beside_attention || config.recurrent->norm == Norm::kNone);
  if (beside || !config.layer_parts.empty() || config.block_scales != BlockScales()) {
    return Unsupported(
        std::string("a device does not compute models of family ") + ModelFamilyName(config.family) +
            " yet, whose layers have one part each, both kinds of parts or factors of their parts; start "
            "with --device cpu",
        "model_type");
  }
  if (config.experts) RETURN_IF_ERROR(CheckExperts(*config.experts, config.hidden_size));
  if (config.recurrent) RETURN_IF_ERROR(CheckStates(*config.recurrent));
  if (config.head_dim <= gpu::kMaxHeadDim) return Ok{};
  return Unsupported("a device computes heads of at most " + std::to_string(gpu::kMaxHeadDim) +
                         " elements, but the model has head_dim " + std::to_string(config.head_dim) +
                         "; the CPU computes it",
                     "head_dim");
}

WeightFormat FormatOfLayers(const DeviceWeights& weights) {
  const DeviceWeights::Layer& layer = weights.layers.front();
  return layer.down.n() > 0 ? layer.down.format() : layer.expert_down.front().format();
}

// Tells the pool which rows of logits its segments have, by the block's number in StepOnDevice::blocks.
void AddLogitRows(const StepRows<DeviceLoraView>& batch, AssistPool& assist) {
  std::int32_t number = 0;
  const auto add = [&](const LogitBlock& block) {
    for (const auto& group : batch.AdaptersOf(block)) {
      const DeviceLoraView& adapter = *group.adapter;
      if (adapter.gate == nullptr || !adapter.Changes(0, LoraTarget::kLmHead)) continue;
      assist.AddLogitRows(adapter.assisted, number, static_cast<std::int32_t>(group.begin),
                          static_cast<std::int32_t>(group.end - group.begin));
    }
    ++number;
  };
  if (batch.num_logit_rows > 0) add(batch.logits);
  for (const LogitBlock& block : batch.scored) add(block);
}

}  // namespace

DeviceModel::DeviceModel(ModelConfig config, DeviceWeights weights, Device& device)
    : device_(device),
      config_(std::move(config)),
      weights_(std::move(weights)),
      workspace_(std::make_unique<DeviceWorkspace>(device, config_, weights_.dtype, WidenedBytes(weights_))) {}

DeviceModel::~DeviceModel() = default;

Result<std::unique_ptr<DeviceModel>> DeviceModel::Load(const std::filesystem::path& directory, Device& device,
                                                       const WeightOptions& options, const Progress& progress) {
  ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(directory));
  RETURN_IF_ERROR(CheckSupported(config));
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelSource> source, OpenModelSource(directory));
  ASSIGN_OR_RETURN(DeviceWeights weights, UploadModelWeights(config, *source, options, device, progress));
  config.AddTokens(options.added_tokens);
  return std::make_unique<DeviceModel>(std::move(config), std::move(weights), device);
}

Result<std::unique_ptr<DeviceModel>> DeviceModel::Upload(const Model& host, Device& device) {
  RETURN_IF_ERROR(CheckSupported(host.config()));
  ASSIGN_OR_RETURN(DeviceWeights weights, UploadModelWeights(host.weights(), device));
  return std::make_unique<DeviceModel>(host.config(), std::move(weights), device);
}

Result<DeviceModel::Fit> DeviceModel::FitOf(const ModelConfig& config, const ModelTensors& tensors,
                                            const WeightOptions& options, const DeviceModelLimits& limits) {
  RETURN_IF_ERROR(CheckSupported(config));
  const PlannedWeights planned = PlanModelWeights(config, tensors, options);
  const DeviceWeights& weights = planned.weights;
  return Fit{planned.bytes, DeviceWorkspace::BytesFor(config, weights.dtype, WidenedBytes(weights), limits),
             FormatOfLayers(weights)};
}

WeightFormat DeviceModel::format() const { return FormatOfLayers(weights_); }

std::int64_t DeviceModel::WeightBytes() const { return weights_.arena->size(); }

std::int64_t DeviceModel::WorkspaceBytes() const { return workspace_->bytes(); }

Status DeviceModel::Reserve(const DeviceModelLimits& limits) { return workspace_->Reserve(limits); }

Status DeviceModel::Forward(const DevicePlace& place, const StepBatch& step,
                            std::span<const DeviceLoraView* const> adapters, StepResult& result) {
  const KvLayout& layout = place.layout;
  CHECK_EQ(layout.num_layers, config_.KvLayers());
  CHECK_EQ(layout.num_kv_heads, config_.num_kv_heads);
  CHECK_EQ(layout.head_dim, config_.head_dim);
  StepRows<DeviceLoraView>& batch = workspace_->batch;
  batch.Describe(step, adapters);
  // Who computes what is decided anew in each assisted step, by other launches.
  const bool may_replay = place.graphs != nullptr && place.assist == nullptr;
  StepRoom* const room = may_replay ? place.graphs->RoomOf(batch) : nullptr;
  RETURN_IF_ERROR(workspace_->Prepare(layout, result, room));
  result.pooled.clear();
  if (place.assist != nullptr) {
    AddLogitRows(batch, *place.assist);
    RETURN_IF_ERROR(place.assist->Upload(place.stream));
  }
  const bool waits = AwaitsArrivals(step);
  const GpuForward forward{place, step, result, device_.properties(), weights_.dtype, waits};
  GpuOps ops(config_, *workspace_, forward);
  workspace_->Upload(place.stream);
  // Rows that the host samples, and masks that it waits for, do not stand in a graph.
  const bool sample_later = room != nullptr && !workspace_->results.room().by_device_alone;
  const auto enqueue = [&] { ForwardPass<GpuOps>(config_, weights_, ops).Run(batch, /*samples=*/!sample_later); };
  const std::vector<StepAttention>& attention = workspace_->step.step().attention;
  if (room != nullptr && attention.size() == 1) {
    GraphShape shape = {.rows = room->rows,
                        .logit_rows = room->logit_rows,
                        .chunks = attention.front().max_chunks,
                        .max_rank = room->max_rank,
                        .pages = place.arena.base,
                        .page_stride = place.arena.page_stride,
                        .page_tokens = layout.page_tokens,
                        .kv_dtype = layout.dtype};
    if (!sample_later) shape.samples = workspace_->results.room();
    RETURN_IF_ERROR(place.graphs->Run(place.stream, shape, workspace_->generation(), waits, enqueue));
  } else if (place.graphs != nullptr) {
    place.graphs->RunEagerly(enqueue);
  } else {
    enqueue();
  }
  if (sample_later) ops.Sample(workspace_->activations().rows.logits, step.samples);
  RETURN_IF_ERROR(ops.Finish());
  result.waited = ops.waited();
  return Ok{};
}

Status DeviceModel::CopyLogits(DeviceStream& stream, std::vector<float>& logits) const {
  const GpuRows& rows = workspace_->activations().rows.logits;
  return workspace_->results.CopyLogits(stream, rows, workspace_->batch.num_logit_rows, logits);
}

}  // namespace loramux
