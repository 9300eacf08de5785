// The slopes of attention with linear biases (ALiBi, arXiv 2108.12409).
#pragma once

#include <vector>

#include "formats/model_config.h"

namespace loramux {

// [num_heads]: by how much the product of a query and a key, before it is scaled, grows with each position of the key.
// Alibi::kBf16: rounded to bfloat16. Empty: the model has none. Source: transformers' modeling_bloom.py, where the
// slopes of a number of heads that is no power of 2 are those of the power below, then every other one of the power
// above.
std::vector<float> AlibiSlopes(const ModelConfig& config);

}  // namespace loramux
