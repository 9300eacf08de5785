// The tensors of a base model on disk, by their place in the model.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "formats/model_config.h"
#include "quant/model_source.h"
#include "quant/stored_matrix.h"
#include "tensor/weight_format.h"

namespace loramux {

// One linear layer as stored. bias: empty if it has none.
struct LinearTensors {
  std::shared_ptr<const StoredMatrix> weight;
  std::vector<float> bias;
};

// A norm as stored. Empty: there is none.
struct NormTensors {
  std::vector<float> weight, bias;
};

// The matrices of a feed-forward block, or of one expert. Without a gate, `gate` has no weight.
struct BlockTensors {
  LinearTensors gate, up, down;
};

// One decoder layer as stored. What it lacks has no weight.
struct LayerTensors : BlockTensors {
  LinearTensors q, k, v, o;
  LinearTensors router, shared_gate;
  std::vector<BlockTensors> experts;
  // With ExpertsConfig::beside_block: norms of the router's input (router.scale), of the output of the layer's own
  // block, and of the input and the output of the experts; a number for each expert.
  NormTensors router_norm, block_output_norm, experts_norm, experts_output_norm;
  std::vector<float> expert_scales;
  std::vector<float> sinks;
  NormTensors input_norm, attention_output_norm, mlp_norm, mlp_output_norm, q_norm, k_norm, v_norm;
  std::vector<float> scale;  // one number, or none
  LinearTensors input_gate, input_projection;
  NormTensors layer_input_norm;
  // In a recurrent layer, which has no q, k and v; `o` is its out_proj. The vectors are those of StateWeightsOf.
  LinearTensors in_qkv, in_z, in_b, in_a;
  LinearTensors in_all;     // Mamba-2's, in place of these
  LinearTensors state_out;  // out_proj of a layer that has attention too, whose o_proj `o` is
  std::vector<float> route_bias;
  std::vector<float> conv, conv_bias, rate, dt_bias, skip, state_norm;
  std::vector<float> a_log;  // what `rate` is made of
};

// A base model as stored.
struct ModelTensors {
  LinearTensors embedding;                // no weight if tied
  LinearTensors lm_head;                  // the embedding if there is no output layer
  bool generates = true;                  // false: there is no output layer, as in models for embeddings alone
  LinearTensors positions;                // no weight if there are none
  LinearTensors project_in, project_out;  // no weight if hidden states are as wide as the embedding
  LinearTensors layer_embedding, layer_context;
  NormTensors final_norm, embedding_norm, layer_context_norm;
  std::vector<LayerTensors> layers;
};

// Finds every tensor of the model. They refer to the files of `source`, which outlives them. Errors: a tensor is
// missing, misshapen, mistyped or has no place in the model (Error::param is its name).
Result<ModelTensors> FindModelTensors(const ModelConfig& config, ModelSource& source);

// The numbers that the model computes with, whatever types they are stored in. A table that ties embedding and output
// layer counts once, and so do keys that are the values too.
std::int64_t ParameterCount(const ModelConfig& config, const ModelTensors& tensors);
// The bytes of all matrices in the files.
std::int64_t MatrixBytes(const ModelTensors& tensors);
// The bytes of all matrices in memory, by the format that they keep unless options name another.
std::map<WeightFormat, std::int64_t> MemoryBytes(const ModelTensors& tensors);
// The bytes that are copied: not those of matrices that lie in their files as the kernels need them. `layers` and
// `others`, embeddings and the output matrix: the formats that replace their own; nullopt: none does.
std::int64_t CopiedBytes(const ModelTensors& tensors, std::optional<WeightFormat> layers,
                         std::optional<WeightFormat> others);
// The floats in which a device keeps these matrices: theirs if they have the same type, else float32, which holds all
// values exactly. Integers count as bf16, as the libraries of quantised formats compute on devices.
DType CommonDType(std::initializer_list<LinearTensors> linears);
// The biases one after the other; empty if there are none.
std::vector<float> StackedBias(std::initializer_list<LinearTensors> linears);
// Calls fn with gate and up, or with up alone.
template <typename F>
auto WithGateUp(const BlockTensors& t, const F& fn) {
  return t.gate.weight == nullptr ? fn(std::initializer_list<LinearTensors>{t.up})
                                  : fn(std::initializer_list<LinearTensors>{t.gate, t.up});
}

}  // namespace loramux
