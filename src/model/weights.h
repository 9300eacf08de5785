// The base model's weights, packed for the kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/result.h"
#include "formats/model_config.h"
#include "formats/model_part.h"
#include "kernels/matmul.h"
#include "model/model_weights.h"
#include "quant/model_source.h"
#include "tensor/weight_format.h"

namespace loramux {

// The CPU's weights: matrices packed for its kernels, vectors as float32.
using ModelWeights = ModelWeightsOf<PackedMatrix, std::vector<float>>;
using LayerWeights = ModelWeights::Layer;

// Bytes in memory.
std::int64_t WeightBytes(const ModelWeights& weights);

// Reports progress of long work: `done` of `total` bytes.
using Progress = std::function<void(std::int64_t done, std::int64_t total)>;

// How PackModelWeights stores matrices.
struct WeightOptions {
  // The format of the layers. nullopt: as they are stored.
  std::optional<WeightFormat> layers;
  // The format of lm_head and the embeddings. nullopt: as they are stored, or kQ8 if `layers` is quantised: each token
  // depends on them alone, and 4 bits cost more there than they save.
  std::optional<WeightFormat> embeddings;
  std::int64_t added_tokens = 0;  // ModelConfig::AddTokens, once the weights are read
  std::int64_t memory = 0;        // bytes that they may take; 0: the machine's with its swap
  ModelPart part;                 // what is read of the model
};

// What `options` stand for.
std::optional<WeightFormat> EmbeddingFormat(const WeightOptions& options);

// Packs the weights of a model. Every tensor must be used, except known buffers (rotary_emb.inv_freq)
// and the second copy of a tied embedding. A missing, misshapen or mistyped tensor is an error that names it with the
// expected and the found shape or type (Error::param is its name). All checks precede any packing.
// Tied embeddings may be stored as lm_head.weight, model.embed_tokens.weight, or both. If both are stored and differ,
// each is used for its own purpose (as transformers 5 does).
// Matrices keep their stored format, unless the options name another. If q, k and v (or gate and up) have different
// formats that one matrix cannot mix (PackedMatrix::ArePanels), theirs is float32, which holds all values exactly.
// Norms and biases become float32. Error (kResourceExhausted): what is not used where it lies in its file needs more
// memory than there is; it says which formats and files would do. `progress` may be empty. The mapped pages can be
// dropped afterwards.
// Of a part, only its rows are read.
Result<ModelWeights> PackModelWeights(const ModelConfig& config, ModelSource& source, const WeightOptions& options,
                                      const Progress& progress);

// Random weights of the given type, for benchmarks: uniform, scaled so that activations neither vanish nor explode;
// norms are 1, biases 0, embeddings tied as the configuration says. Deterministic in `seed`. Of a quantised format, the
// embeddings and lm_head have 8 bits.
ModelWeights RandomModelWeights(const ModelConfig& config, WeightFormat format, std::uint64_t seed);
inline ModelWeights RandomModelWeights(const ModelConfig& config, DType dtype, std::uint64_t seed) {
  return RandomModelWeights(config, FormatOf(dtype), seed);
}

}  // namespace loramux
