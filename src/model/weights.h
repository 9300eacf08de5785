// The base model's weights, packed for the kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "formats/model_config.h"
#include "formats/safetensors.h"
#include "kernels/matmul.h"
#include "model/model_weights.h"

namespace loramux {

// The CPU's weights: matrices packed for its kernels, vectors as float32.
using ModelWeights = ModelWeightsOf<PackedMatrix, std::vector<float>>;
using LayerWeights = ModelWeights::Layer;

// Bytes in memory.
std::int64_t WeightBytes(const ModelWeights& weights);

// Reports progress of long work: `done` of `total` bytes.
using Progress = std::function<void(std::int64_t done, std::int64_t total)>;

// Packs the weights of an opened model directory. Every tensor must be used, except known buffers (rotary_emb.inv_freq)
// and the second copy of a tied embedding. A missing, misshapen or mistyped tensor is an error that names it with the
// expected and the found shape or type (Error::param is its name). All checks precede any packing.
// Tied embeddings may be stored as lm_head.weight, model.embed_tokens.weight, or both. If both are stored and differ,
// each is used for its own purpose (as transformers 5 does).
// Matrices keep their stored type. If q, k and v (or gate and up) have different types, their common matrix is float32,
// which holds all values exactly. Norms and biases become float32.
// `progress` may be empty. The mapped pages can be dropped afterwards.
Result<ModelWeights> PackModelWeights(const ModelConfig& config, const TensorFile& file, const Progress& progress);

// Random weights of the given type, for benchmarks: uniform, scaled so that activations neither vanish nor explode;
// norms are 1, biases 0, embeddings tied as the configuration says. Deterministic in `seed`. REQUIRES:
// IsWeightDType(dtype).
ModelWeights RandomModelWeights(const ModelConfig& config, DType dtype, std::uint64_t seed);

}  // namespace loramux
