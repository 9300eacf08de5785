// The base model: weights, and the forward pass over a mixed batch (any adapters, prefill and decode together).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "formats/model_config.h"
#include "kernels/attention.h"
#include "kernels/kernel_context.h"
#include "kernels/lora.h"
#include "memory/layer_progress.h"
#include "model/forward_batch.h"
#include "model/lora_view.h"
#include "model/weights.h"
#include "step/pool_batch.h"
#include "step/sample_batch.h"
#include "tensor/kv_layout.h"

namespace loramux {

// One sequence's part of a batch on the CPU.
using SequenceChunk = SequenceChunkOf<LoraView>;

// Options of Model::Forward.
struct ForwardOptions {
  LoraVariant lora_variant = LoraVariant::kMbgmv;
  // Transfers of adapters, keys and values that are still arriving. No layer of them is read before it has arrived.
  std::span<const std::shared_ptr<const LayerProgress>> arrivals;
  // What to sample: null, or one row for each row of logits. Then `tokens` receives the tokens in the order of the
  // rows.
  const SampleBatch* samples = nullptr;
  std::vector<SampledToken>* tokens = nullptr;
  // What to score: one row for each of SequenceChunk::scored_rows. `scores` receives the results in the order of the
  // rows; null if there are none.
  std::span<const ScoreRow> score_rows;
  std::vector<ScoredToken>* scores = nullptr;
  // What to pool: null, or ranges of rows of the batch, chunk after chunk. `pooled` receives the sums [ranges,
  // hidden_size].
  const PoolBatch* pools = nullptr;
  std::vector<double>* pooled = nullptr;
};

struct CpuWorkspace;

// A base model on the CPU: runs ForwardPass with CpuOps. Owns the packed weights and a workspace that grows to the
// largest batch seen; it does not allocate after that. Not thread-safe: one Forward at a time.
class Model {
 public:
  // Takes over packed weights. REQUIRES: they have the shapes that the configuration says.
  Model(ModelConfig config, ModelWeights weights);
  ~Model();
  // Reads and packs a Hugging Face directory. `progress` may be empty. Errors: those of the files.
  static Result<std::unique_ptr<Model>> Load(const std::filesystem::path& directory, const WeightOptions& options,
                                             const Progress& progress);

  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return weights_; }

  // Prepares the workspace for batches of up to `max_tokens` tokens, `max_logit_rows` rows of logits, sequences of up
  // to `max_positions` positions, adapters of rank up to `max_rank` (0: none), and a pool of `threads`. Larger batches
  // still work, but allocate.
  void Reserve(std::int64_t max_tokens, std::int64_t max_logit_rows, std::int64_t max_positions, std::int64_t max_rank,
               int threads);

  // Computes the batch: stores keys and values of all its tokens in their pages, computes the logits and samples from
  // them. Returns the time that it waited for arrivals. A chunk's logits are bitwise the same whatever shares the batch
  // and however its prompt is chunked.
  // Chunks of one adapter should be adjacent; otherwise its weights are read once per group of them. REQUIRES: token
  // ids in [0, vocab), valid pages, chunks not empty, logit_rows <= tokens.size(), `layout` as the configuration says.
  TimeNs Forward(const KernelContext& context, std::span<const SequenceChunk> chunks, const KvLayout& layout,
                 const PageArena& arena, const ForwardOptions& options);
  // The logits of the last Forward [sum of logit_rows, vocab] in chunk order, valid until the next. Only this model can
  // offer them, because its memory is the host's. REQUIRES: the last Forward scored no rows.
  std::span<const float> logits() const;

 private:
  ModelConfig config_;
  ModelWeights weights_;
  std::unique_ptr<CpuWorkspace> workspace_;
};

}  // namespace loramux
