// The base model: weights, and the forward pass over a mixed batch (any adapters, prefill and decode together).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "base/ids.h"
#include "base/result.h"
#include "formats/model_config.h"
#include "kernels/attention.h"
#include "kernels/kernel_context.h"
#include "kernels/lora.h"
#include "model/lora_view.h"
#include "model/weights.h"
#include "tensor/kv_layout.h"

namespace loramux {

// One sequence's part of a batch. Not owning.
struct SequenceChunk {
  std::span<const TokenId> tokens;  // to compute, at positions [position, position + size)
  std::int64_t position = 0;
  const std::uint32_t* pages = nullptr;  // page table covering all positions up to the last of this chunk
  const LoraView* adapter = nullptr;     // null: the base model. Chunks of one adapter should be adjacent.
  // How many of the chunk's last tokens need logits: 0 (inner chunk of a prompt), 1, or more.
  std::int32_t logit_rows = 0;
  // The length of the request's whole prompt. Used only by dynamic rope scaling: the token at position p is rotated as
  // in a sequence of max(rope_length, p + 1) tokens. That equals transformers' result for a prompt in one pass followed
  // by single tokens. It depends neither on chunking nor on a recomputation after preemption. As a consequence, beyond
  // max_position the keys of equal prefixes differ between prompts of different lengths (UsesRopeLength).
  std::int64_t rope_length = 0;
};

// True if the keys of a prompt of this length depend on SequenceChunk::rope_length. They may then be shared only
// between prompts of the same length.
bool UsesRopeLength(const ModelConfig& config, std::int64_t prompt_length);

// Options of Model::Forward.
struct ForwardOptions {
  LoraVariant lora_variant = LoraVariant::kMbgmv;
  // Called on the calling thread before any read of a layer's adapter weights and cached keys and values; lm_head's
  // count as the last layer's. May block. Null: all layers are available.
  const std::function<void(std::int64_t layer)>* before_layer = nullptr;
};

// Runs forward passes. Owns the packed weights and a workspace that grows to the largest batch seen; it does not
// allocate after that. Not thread-safe: one Forward at a time.
class Model {
 public:
  // Takes over packed weights. REQUIRES: they have the shapes that the configuration says.
  Model(ModelConfig config, ModelWeights weights);
  ~Model();
  // Reads and packs a Hugging Face directory. `progress` may be empty. Errors: those of the files.
  static Result<std::unique_ptr<Model>> Load(const std::filesystem::path& directory, const Progress& progress);

  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return weights_; }

  // Prepares the workspace for batches of up to `max_tokens` tokens, `max_logit_rows` rows of logits, sequences of up
  // to `max_positions` positions, adapters of rank up to `max_rank` (0: none), and a pool of `threads`. Larger batches
  // still work, but allocate.
  void Reserve(std::int64_t max_tokens, std::int64_t max_logit_rows, std::int64_t max_positions, std::int64_t max_rank,
               int threads);

  // Computes the batch: stores keys and values of all its tokens in their pages, and returns the logits [sum of
  // logit_rows, vocab] as float32 in chunk order, valid until the next call. A chunk's logits are bitwise the same
  // whatever shares the batch and however its prompt is chunked.
  // Chunks of one adapter should be adjacent; otherwise its weights are read once per group of them. REQUIRES: token
  // ids in [0, vocab), valid pages, chunks not empty, logit_rows <= tokens.size(), `layout` as the configuration says.
  std::span<const float> Forward(const KernelContext& context, std::span<const SequenceChunk> chunks,
                                 const KvLayout& layout, const PageArena& arena, const ForwardOptions& options);

 private:
  struct Workspace;
  class Pass;
  ModelConfig config_;
  ModelWeights weights_;
  std::unique_ptr<Workspace> workspace_;
};

}  // namespace loramux
