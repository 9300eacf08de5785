// The tensors of a Hugging Face directory, by their place in the model.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "base/result.h"
#include "formats/model_config.h"
#include "formats/safetensors.h"

namespace loramux {

// One linear layer as stored. bias: null if it has none.
struct LinearTensors {
  const StoredTensor* weight = nullptr;
  const StoredTensor* bias = nullptr;
};

// One decoder layer as stored.
struct LayerTensors {
  LinearTensors q, k, v, o, gate, up, down;
  const StoredTensor* input_norm = nullptr;
  const StoredTensor* post_attention_norm = nullptr;
  const StoredTensor* q_norm = nullptr;  // null without qk_norm
  const StoredTensor* k_norm = nullptr;
};

// A base model as stored.
struct ModelTensors {
  const StoredTensor* embedding = nullptr;  // null if tied
  const StoredTensor* lm_head = nullptr;
  const StoredTensor* final_norm = nullptr;
  std::vector<LayerTensors> layers;
};

// Finds every tensor of the model. Errors: a tensor is missing, misshapen, mistyped or has no place in the model
// (Error::param is its name).
Result<ModelTensors> FindModelTensors(const ModelConfig& config, const TensorFile& file);

// The bytes of all matrices.
std::int64_t MatrixBytes(const ModelTensors& tensors);
// The type that holds all values of these matrices exactly: theirs if they have the same, else float32.
DType CommonDType(std::initializer_list<LinearTensors> linears);
// The elements as float32.
std::vector<float> ToFloats(const StoredTensor& tensor);
// The biases one after the other; empty if there are none.
std::vector<float> StackedBias(std::initializer_list<LinearTensors> linears);

}  // namespace loramux
