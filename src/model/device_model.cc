#include "model/device_model.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "gpu/kernels/attention.h"
#include "model/device_workspace.h"
#include "model/gpu_ops.h"
#include "model/step_graphs.h"

namespace loramux {
namespace {

// Error: a model that the kernels cannot compute.
Status CheckSupported(const ModelConfig& config) {
  if (config.head_dim <= gpu::kMaxHeadDim) return Ok{};
  return Unsupported("a device computes heads of at most " + std::to_string(gpu::kMaxHeadDim) +
                         " elements, but the model has head_dim " + std::to_string(config.head_dim) +
                         "; the CPU computes it",
                     "head_dim");
}

}  // namespace

DeviceModel::DeviceModel(ModelConfig config, DeviceWeights weights, Device& device)
    : device_(device),
      config_(std::move(config)),
      weights_(std::move(weights)),
      workspace_(std::make_unique<DeviceWorkspace>(device, config_, weights_.dtype)) {}

DeviceModel::~DeviceModel() = default;

Result<std::unique_ptr<DeviceModel>> DeviceModel::Load(const std::filesystem::path& directory, Device& device,
                                                       const Progress& progress) {
  ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(directory));
  RETURN_IF_ERROR(CheckSupported(config));
  ASSIGN_OR_RETURN(const TensorFile file, TensorFile::OpenModelDirectory(directory));
  ASSIGN_OR_RETURN(DeviceWeights weights, UploadModelWeights(config, file, device, progress));
  return std::make_unique<DeviceModel>(std::move(config), std::move(weights), device);
}

Result<std::unique_ptr<DeviceModel>> DeviceModel::Upload(const Model& host, Device& device) {
  RETURN_IF_ERROR(CheckSupported(host.config()));
  ASSIGN_OR_RETURN(DeviceWeights weights, UploadModelWeights(host.weights(), device));
  return std::make_unique<DeviceModel>(host.config(), std::move(weights), device);
}

std::int64_t DeviceModel::WeightBytes() const { return weights_.arena->size(); }

std::int64_t DeviceModel::WorkspaceBytes() const { return workspace_->bytes(); }

Status DeviceModel::Reserve(const DeviceModelLimits& limits) { return workspace_->Reserve(limits); }

Result<TimeNs> DeviceModel::Forward(DeviceStream& stream, std::span<const DeviceSequenceChunk> chunks,
                                    const KvLayout& layout, const PageArena& device_pages,
                                    const ForwardOptions& options, StepGraphs* graphs) {
  CHECK_EQ(layout.num_layers, config_.num_layers);
  CHECK_EQ(layout.num_kv_heads, config_.num_kv_heads);
  CHECK_EQ(layout.head_dim, config_.head_dim);
  ForwardBatch<DeviceLoraView>& batch = workspace_->batch;
  batch.Describe(chunks);
  StepRoom* const room = graphs == nullptr ? nullptr : graphs->RoomOf(batch, options);
  RETURN_IF_ERROR(workspace_->Prepare(layout, options, room));
  if (options.scores != nullptr) options.scores->clear();
  if (options.pooled != nullptr) options.pooled->clear();
  const bool waits = AwaitsArrivals(options);
  const GpuForward forward{stream, layout, device_pages, options, device_.properties(), weights_.dtype, waits};
  GpuOps ops(config_, *workspace_, forward);
  workspace_->Upload(stream);
  // Rows that the host samples, and masks that it waits for, do not stand in a graph.
  const bool sample_later =
      room != nullptr && options.samples != nullptr && !workspace_->results.room().by_device_alone;
  const auto enqueue = [&] {
    ForwardPass<GpuOps>(config_, weights_, ops)
        .Run(batch, sample_later ? nullptr : options.samples, options.score_rows, options.pools);
  };
  const std::vector<StepAttention>& attention = workspace_->step.step().attention;
  if (room != nullptr && attention.size() == 1) {
    GraphShape shape = {.rows = room->rows,
                        .logit_rows = room->logit_rows,
                        .chunks = attention.front().max_chunks,
                        .max_rank = room->max_rank,
                        .pages = device_pages.base,
                        .page_stride = device_pages.page_stride,
                        .page_tokens = layout.page_tokens,
                        .kv_dtype = layout.dtype};
    if (!sample_later) shape.samples = workspace_->results.room();
    RETURN_IF_ERROR(graphs->Run(stream, shape, workspace_->generation(), waits, enqueue));
  } else if (graphs != nullptr) {
    graphs->RunEagerly(enqueue);
  } else {
    enqueue();
  }
  if (sample_later) ops.Sample(workspace_->activations().rows.logits, *options.samples);
  RETURN_IF_ERROR(ops.Finish());
  return ops.waited();
}

Status DeviceModel::CopyLogits(DeviceStream& stream, std::vector<float>& logits) const {
  const GpuRows& rows = workspace_->activations().rows.logits;
  return workspace_->results.CopyLogits(stream, rows, workspace_->batch.num_logit_rows, logits);
}

}  // namespace loramux
