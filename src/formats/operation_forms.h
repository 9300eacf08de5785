// What a model says of operations, in the same terms for every backend. Device code includes this header.
#pragma once

#include <cstdint>

#include "formats/activation.h"

namespace loramux {

// What a feed-forward block makes of its gate, and whether it multiplies that by `up`.
struct GateForm {
  Activation f = Activation::kSilu;
  bool gated = true;
  float alpha = 0, limit = 0;  // constants of Activation::kClampedSwiglu
};

// How attention makes scores of the products of queries and keys.
struct ScoreForm {
  float scale = 1;          // above 0; or, on a device, 0: 1 / sqrt(head_dim)
  float soft_cap = 0;       // c above 0: a score is c tanh(scale * product / c)
  std::int32_t window = 0;  // how many positions are in view; 0: all earlier ones
  // [num_heads]: a further score of each head, not scaled, for which there is no value; null: none.
  const float* sinks = nullptr;
  // [num_heads] slopes of ALiBi; null: none. A product of a query and a key gets slope * (position of the key - that of
  // the query) more, before it is scaled; with `rounds_bias` slope * position of the key, in bfloat16 like both.
  const float* slopes = nullptr;
  bool rounds_bias = false;
};

// What a row becomes of what its chosen experts give: factor * the row + the sum over the choices. The factor is 0 if
// `keeps` is not set, 1 with `gates` null, else the sigmoid of the row's gate.
struct CombineForm {
  std::int32_t per_token = 0;  // choices
  bool keeps = false;
  const float* gates = nullptr;  // one for each row, gate_stride floats apart
  std::int64_t gate_stride = 0;
};

}  // namespace loramux
