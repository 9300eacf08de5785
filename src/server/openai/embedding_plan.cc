#include "server/openai/embedding_plan.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace loramux {
namespace {

Result<EmbeddingConfig> ConfigOf(const EmbeddingOptions& options, const AdapterVersion* adapter) {
  const Result<std::optional<EmbeddingConfig>>* config = &options.model;
  const bool own = adapter != nullptr && (!adapter->file.embedding.ok() || adapter->file.embedding->has_value());
  if (own) config = &adapter->file.embedding;
  if (config->ok()) {
    EmbeddingConfig result = (*config)->value_or(EmbeddingConfig());
    result.pooling = options.pooling.value_or(result.pooling);
    return result;
  }
  if (options.pooling) return EmbeddingConfig{.pooling = *options.pooling};
  return Unsupported("`model`: this server cannot make embeddings as the files of this " +
                         std::string(own ? "adapter" : "model") + " say (" + config->error().message +
                         "); the operator chooses another pooling by --pooling",
                     "model");
}

std::string LengthsOf(const ModelConfig& model) {
  const std::string all = std::to_string(model.hidden_size);
  if (!model.matryoshka) return all + ", because this model is not trained for shorter embeddings";
  if (model.matryoshka->empty()) return "1 to " + all;
  std::string lengths;
  for (const std::int64_t length : *model.matryoshka) lengths += std::to_string(length) + ", ";
  return lengths + "or " + all;
}

bool HasLength(const ModelConfig& model, std::int64_t length) {
  if (length == model.hidden_size) return true;
  if (!model.matryoshka || length > model.hidden_size) return false;
  return model.matryoshka->empty() ||
         std::find(model.matryoshka->begin(), model.matryoshka->end(), length) != model.matryoshka->end();
}

}  // namespace

Result<EmbeddingPlan> PlanEmbedding(const EmbeddingOptions& options, const ModelConfig& model,
                                    const AdapterVersion* adapter, const EmbeddingFields& fields) {
  ASSIGN_OR_RETURN(const EmbeddingConfig config, ConfigOf(options, adapter));
  if (fields.dimensions > 0 && !HasLength(model, fields.dimensions)) {
    return InvalidArgument(
        "`dimensions`: expected " + LengthsOf(model) + ", found " + std::to_string(fields.dimensions), "dimensions");
  }
  return EmbeddingPlan{config.pooling, fields.normalize.value_or(config.normalize), fields.dimensions};
}

void FinishEmbedding(const EmbeddingPlan& plan, std::vector<float>& embedding) {
  const auto dimensions = static_cast<std::size_t>(plan.dimensions);
  if (dimensions > 0 && dimensions < embedding.size()) embedding.resize(dimensions);
  if (!plan.normalize) return;
  double squares = 0;
  for (const float value : embedding) squares += static_cast<double>(value) * value;
  const double length = std::sqrt(squares);
  if (length == 0) return;
  for (float& value : embedding) value = static_cast<float>(value / length);
}

}  // namespace loramux
