// How a request's embeddings are made: what the operator, the model or adapter, and the request say together.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "adapter/registry.h"
#include "base/pool_batch.h"
#include "base/result.h"
#include "formats/embedding_config.h"
#include "formats/model_config.h"
#include "server/openai/openai_request.h"

namespace loramux {

// What the operator and the base model say.
struct EmbeddingOptions {
  std::optional<Pooling> pooling;  // of all models, whatever their configurations say (--pooling)
  // Of the base model, and of adapters without one; nullopt: the defaults. An error refuses requests that go by it.
  Result<std::optional<EmbeddingConfig>> model = std::optional<EmbeddingConfig>();
};

struct EmbeddingPlan {
  Pooling pooling = Pooling::kLast;
  bool normalize = true;        // to the Euclidean length 1
  std::int64_t dimensions = 0;  // that are kept; 0: all
};

// Decides how to make the embeddings of a request for `adapter` (null: the base model). Errors are meant for the
// client: the configuration asks for what is not computed, or `dimensions` is not a length that the model is trained
// for.
Result<EmbeddingPlan> PlanEmbedding(const EmbeddingOptions& options, const ModelConfig& model,
                                    const AdapterVersion* adapter, const EmbeddingFields& fields);

// Cuts a pooled hidden state to the plan's dimensions, then normalises it. One of the length 0 stays as it is.
void FinishEmbedding(const EmbeddingPlan& plan, std::vector<float>& embedding);

}  // namespace loramux
