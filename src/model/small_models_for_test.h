// Small models of random weights, for tests of devices.
#pragma once

#include <cstdint>
#include <vector>

#include "base/prng.h"
#include "formats/model_config.h"
#include "model/weights.h"
#include "tensor/weight_format.h"

namespace loramux::device_model_test {

inline ModelConfig SmallConfig() {
  ModelConfig c;
  c.hidden_size = 64;
  c.num_layers = 2;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 16;
  c.intermediate_size = 96;
  c.vocab_size = 130;
  c.max_position = 1024;
  c.sliding_window = {0, 0};
  return c;
}

// The second layer has experts, and a shared one with a gate.
inline ModelConfig SmallConfigWithExperts() {
  ModelConfig c = SmallConfig();
  c.family = ModelFamily::kQwen2Moe;
  c.experts = ExpertsConfig{.route = {.experts = 6, .per_token = 2, .renormalise = true},
                            .intermediate_size = 40,
                            .shared_size = 48,
                            .shared_gate = true,
                            .layers = {false, true}};
  return c;
}

// The first layer is of gated DeltaNet, or of Mamba-2; the second has attention, with an output gate beside the former.
inline ModelConfig SmallHybridConfig(bool mamba = false) {
  ModelConfig c = SmallConfig();
  c.recurrent = RecurrentConfig{.mamba = mamba,
                                .key_heads = 2,
                                .value_heads = 4,
                                .key_dim = 16,
                                .value_dim = 12,
                                .layers = {true, false},
                                .conv_bias = mamba,
                                .input_bias = mamba,
                                .output_bias = mamba};
  c.output_gate = !mamba;
  c.qk_norm = mamba ? QkNorm::kNone : QkNorm::kHeads;
  return c;
}

// Random weights with norms and biases that matter.
inline ModelWeights RandomWeights(const ModelConfig& config, WeightFormat format) {
  ModelWeights weights = RandomModelWeights(config, format, 1);
  Prng prng(2);
  const auto shake = [&](std::vector<float>& values) {
    for (float& value : values) value += static_cast<float>(prng.NextDouble() - 0.5);
  };
  for (LayerWeights& w : weights.layers) {
    for (auto* v : {&w.qkv_bias, &w.o_bias, &w.gate_up_bias, &w.down_bias, &w.input_norm.weight, &w.mlp_norm.weight,
                    &w.q_norm.weight, &w.k_norm.weight, &w.states.conv, &w.states.dt_bias, &w.states.norm,
                    &w.states.conv_bias, &w.states.skip}) {
      shake(*v);
    }
  }
  shake(weights.final_norm.weight);
  return weights;
}

inline ModelWeights RandomWeights(const ModelConfig& config, DType dtype) {
  return RandomWeights(config, FormatOf(dtype));
}

}  // namespace loramux::device_model_test
