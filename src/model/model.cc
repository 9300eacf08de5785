#include "model/model.h"

#include <utility>

#include "base/check.h"
#include "model/cpu_ops.h"

namespace loramux {
namespace {

void CheckLayout(const ModelConfig& config, const KvLayout& layout) {
  CHECK_EQ(layout.num_layers, config.KvLayers());
  CHECK_EQ(layout.num_kv_heads, config.num_kv_heads);
  CHECK_EQ(layout.head_dim, config.head_dim);
}

}  // namespace

Model::Model(ModelConfig config, ModelWeights weights, const ModelPart& part)
    : part_(part),
      config_(std::move(config)),
      own_config_(ConfigOfPart(part, config_)),
      weights_(std::move(weights)),
      workspace_(std::make_unique<CpuWorkspace>(own_config_, config_, part_)) {}

Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::Load(const std::filesystem::path& directory, const WeightOptions& options,
                                           const Progress& progress) {
  ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(directory));
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelSource> source, OpenModelSource(directory));
  ASSIGN_OR_RETURN(ModelWeights weights, PackModelWeights(config, *source, options, progress));
  config.AddTokens(options.added_tokens);
  return std::make_unique<Model>(std::move(config), std::move(weights), options.part);
}

void Model::Reserve(std::int64_t max_tokens, std::int64_t max_logit_rows, std::int64_t max_positions,
                    std::int64_t max_rank, int threads) {
  workspace_->Reserve(own_config_, max_tokens, max_logit_rows, max_positions, max_rank, threads);
}

void Model::Forward(const CpuPlace& place, const StepBatch& step, std::span<const LoraView* const> adapters,
                    StepResult& result) {
  CheckLayout(own_config_, place.layout);
  StepRows<LoraView>& rows = workspace_->batch;
  rows.Describe(step, adapters);
  CpuOps ops(own_config_, *workspace_, place, result);
  result.tokens.resize(step.samples.rows.size());
  result.scores.clear();
  result.pooled.clear();
  ForwardPass<CpuOps>(own_config_, weights_, ops).Run(rows);
  result.waited = ops.waited();
  if (ops.error()) result.error = ops.error();
}

std::span<const float> Model::logits() const {
  return {workspace_->logits.data(), static_cast<std::size_t>(workspace_->batch.num_logit_rows * config_.vocab_size)};
}

}  // namespace loramux
