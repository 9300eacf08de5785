// The base model: weights, and the forward pass over a mixed batch (any adapters, prefill and decode together).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "base/result.h"
#include "collective/collectives.h"
#include "formats/model_config.h"
#include "kernels/kernel_context.h"
#include "kernels/lora.h"
#include "model/lora_view.h"
#include "model/weights.h"
#include "step/step_batch.h"
#include "step/step_result.h"
#include "tensor/kv_layout.h"
#include "tensor/page_arena.h"

namespace loramux {

// Where and how the CPU computes steps. Not owning.
struct CpuPlace {
  KernelContext context;
  KvLayout layout;
  PageArena arena;  // memory of the device pool
  LoraVariant lora_variant = LoraVariant::kMbgmv;
  Collectives* group = nullptr;  // the ranks that compute the other parts; null: the model is whole
};

struct CpuWorkspace;

// A base model on the CPU: runs ForwardPass with CpuOps. Owns the packed weights and a workspace that grows to the
// largest batch seen; it does not allocate after that. Not thread-safe: one Forward at a time.
class Model {
 public:
  // Takes over packed weights. REQUIRES: they have the shapes that the configuration says; of a part of the model,
  // those of ConfigOfPart and OutputsOf.
  Model(ModelConfig config, ModelWeights weights, const ModelPart& part = {});
  ~Model();
  // Reads and packs a Hugging Face directory, or the part that the options say. `progress` may be empty. Errors: those
  // of the files; CheckParts.
  static Result<std::unique_ptr<Model>> Load(const std::filesystem::path& directory, const WeightOptions& options,
                                             const Progress& progress);

  // The configuration of the whole model; of the part that this object computes.
  const ModelConfig& config() const { return config_; }
  const ModelConfig& own_config() const { return own_config_; }
  const ModelPart& part() const { return part_; }
  const ModelWeights& weights() const { return weights_; }

  // Prepares the workspace for batches of up to `max_tokens` tokens, `max_logit_rows` rows of logits, sequences of up
  // to `max_positions` positions, adapters of rank up to `max_rank` (0: none), and a pool of `threads`. Larger batches
  // still work, but allocate.
  void Reserve(std::int64_t max_tokens, std::int64_t max_logit_rows, std::int64_t max_positions, std::int64_t max_rank,
               int threads);

  // Computes a step: stores keys and values of all its tokens in their pages, computes the logits, samples, scores and
  // pools. `adapters`: that of each segment. Fills the result's tokens, scores, pooled and waited. No layer is read
  // before the step's arrivals have it. A sequence's logits are bitwise the same whatever shares the step and however
  // its prompt is chunked.
  // All ranks of a group compute the same step, but for what it samples and pools; rank 0 alone has logits and what is
  // made of them. Sets the result's error if a rank was lost.
  // Sequences of one adapter should be adjacent; otherwise its weights are read once per segment. REQUIRES: token ids
  // in [0, vocab), valid pages, what StepRows::Describe requires, `place.layout` as the configuration says; the step
  // samples no row, or each of StepSequence::logit_rows.
  void Forward(const CpuPlace& place, const StepBatch& step, std::span<const LoraView* const> adapters,
               StepResult& result);
  // The logits of the last Forward [sum of logit_rows, vocab] in the order of the sequences, valid until the next. Only
  // this model can offer them, because its memory is the host's. REQUIRES: the last Forward scored no rows.
  std::span<const float> logits() const;

 private:
  ModelPart part_;
  ModelConfig config_, own_config_;
  ModelWeights weights_;
  std::unique_ptr<CpuWorkspace> workspace_;
};

}  // namespace loramux
