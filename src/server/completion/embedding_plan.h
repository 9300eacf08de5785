// What becomes of the hidden states that a request pools, embeddings, classes or scores: what the operator, the model
// or adapter, and the request say together.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "adapter/registry.h"
#include "base/result.h"
#include "formats/embedding_config.h"
#include "formats/model_config.h"
#include "server/completion/choice_output.h"
#include "server/completion/completion_request.h"

namespace loramux {

// What the operator and the base model say.
struct EmbeddingOptions {
  std::optional<Pooling> pooling;  // pooling of all models, whatever their configurations say (--pooling)
  // Configuration of the base model and of adapters without one; nullopt: the defaults. An error refuses such requests.
  Result<std::optional<EmbeddingConfig>> model = std::optional<EmbeddingConfig>();
};

struct EmbeddingPlan {
  PooledUse use = PooledUse::kVectors;
  Pooling pooling = Pooling::kLast;
  bool normalize = true;        // to the Euclidean length 1
  std::int64_t dimensions = 0;  // numbers that are kept; 0: all
  // Of classes and scores: the adapter's; null: it has none, so scores are cosines. Not owned.
  const ClassHead* head = nullptr;
  bool activate = true;   // EmbeddingFields::activate
  std::size_t first = 0;  // EmbeddingFields::first

  // Whether each pair of texts is a prompt, instead of each text.
  bool in_pairs() const { return use == PooledUse::kScores && head != nullptr; }
};

// Decides what to make of the hidden states of a request for `adapter` (null: the base model). Errors are meant for the
// client: the configuration asks for what is not computed, `dimensions` is not a length that the model is trained for,
// or the adapter has no head for what is asked.
Result<EmbeddingPlan> PlanEmbedding(const EmbeddingOptions& options, const ModelConfig& model,
                                    const AdapterVersion* adapter, const EmbeddingFields& fields);

// Cuts a pooled hidden state to the plan's dimensions, then normalises it. One of the length 0 stays as it is.
void FinishEmbedding(const EmbeddingPlan& plan, std::vector<float>& embedding);

// Makes the answers of the outputs of all prompts, whose `embedding` is the pooled hidden state: vectors; or the
// numbers of classes, with the likeliest one's label as `text`; or an output with one number for each pair of texts.
void FinishPooled(const EmbeddingPlan& plan, std::vector<ChoiceOutput>& outputs);

// Error if the adapter (null: the base model) has a head in the place of an output layer, so that it generates nothing.
Status CheckGenerates(const AdapterVersion* adapter);

}  // namespace loramux
