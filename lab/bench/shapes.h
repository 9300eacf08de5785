// Model shapes for benchmarks with random weights.
#pragma once

#include "formats/model_config.h"

namespace loramux {

// hidden 768, 12 layers, 12 heads, ffn 2048, vocabulary 32,000.
inline ModelConfig Shape160M() {
  ModelConfig config;
  config.hidden_size = 768;
  config.num_layers = 12;
  config.num_heads = config.num_kv_heads = 12;
  config.head_dim = 64;
  config.intermediate_size = 2048;
  config.vocab_size = 32000;
  config.max_position = 2048;
  config.sliding_window.assign(12, 0);
  return config;
}

// The shape of Llama-2-7B.
inline ModelConfig Shape7B() {
  ModelConfig config;
  config.hidden_size = 4096;
  config.num_layers = 32;
  config.num_heads = config.num_kv_heads = 32;
  config.head_dim = 128;
  config.intermediate_size = 11008;
  config.vocab_size = 32000;
  config.max_position = 8192;
  return config;
}

}  // namespace loramux
