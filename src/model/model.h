// The base model: weights and the forward pass over a mixed batch (any adapters, prefill and decode together).
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

// One sequence's part of a batch.
struct SequenceChunk {
  std::span<const TokenId> tokens;  // the tokens to compute, at positions [position, position + size)
  std::int64_t position = 0;
  const std::uint32_t* pages = nullptr;  // page table covering all positions up to the last of this chunk
  const LoraView* adapter = nullptr;     // null: the base model. Chunks of one adapter must be adjacent.
  // Logits wanted of the last `logit_rows` tokens of this chunk: 0 (a prompt's inner chunk), 1, or more.
  std::int32_t logit_rows = 0;
  // The length of the request's whole prompt. Only dynamic rope scaling looks at it: the token at position p is rotated
  // as in a sequence of max(rope_length, p + 1) tokens. That is what transformers does with a prompt in one pass and
  // then token by token, and it depends neither on chunking nor on a recomputation after preemption. (It follows that
  // beyond max_position the keys of equal prefixes differ between prompts of different lengths: UsesRopeLength.)
  std::int64_t rope_length = 0;
};

// True if the keys of a prompt of this length depend on SequenceChunk::rope_length: they may be shared only between
// prompts of the same length.
bool UsesRopeLength(const ModelConfig& config, std::int64_t prompt_length);

struct ForwardOptions {
  LoraVariant lora_variant = LoraVariant::kMbgmv;
  // Called on the calling thread before anything of a layer's adapters and cached keys and values is read; those of
  // lm_head count as the last layer's. May block. Null: everything is there.
  const std::function<void(std::int64_t layer)>* before_layer = nullptr;
};

// Runs forward passes. Owns the packed weights and a workspace that grows to the largest batch seen; no allocation
// after that. Not thread-safe: one Forward at a time.
class Model {
 public:
  Model(ModelConfig config, ModelWeights weights);
  ~Model();
  // Reads and packs a Hugging Face directory. `progress` may be empty.
  static Result<std::unique_ptr<Model>> Load(const std::filesystem::path& directory, const Progress& progress);

  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return weights_; }

  // Prepares the workspace for batches of up to `max_tokens` tokens, `max_logit_rows` rows of logits, sequences of up
  // to `max_positions` positions, adapters of rank up to `max_rank` (0: none), and a pool of `threads`. What is larger
  // still works; it allocates.
  void Reserve(std::int64_t max_tokens, std::int64_t max_logit_rows, std::int64_t max_positions, std::int64_t max_rank,
               int threads);

  // Computes the batch: stores keys and values of all its tokens in their pages, and returns the logits
  // [sum of logit_rows, vocab] float32, in chunk order; valid until the next call.
  // REQUIRES: token ids in [0, vocab), pages valid, chunks not empty, logit_rows <= tokens.size(), `layout` as the
  // configuration says. Chunks of one adapter should be adjacent, or its weights are read once for each group of them.
  // The logits of a chunk are bitwise the same whatever shares the batch and however its prompt is chunked.
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
