// Row-wise operations around the products, on `rows` rows of `width` floats. Each row's result depends on that row
// alone.
#pragma once

#include <cstdint>

#include "formats/operation_forms.h"
#include "kernels/kernel_context.h"

namespace loramux {

// The weights of a norm: weight[i] + offset, or weight[i] with a bias.
struct NormWeights {
  const float* weight = nullptr;
  float offset = 0;
  const float* bias = nullptr;
};

// y[i, :] = x[i, :] / sqrt(mean(x[i, :]^2) + eps) * (weight + offset); with a bias the LayerNorm, (x[i, :] - mean) /
// sqrt(variance + eps) * weight + bias, whose variance divides by width. x and y may be the same.
struct NormRowsArguments {
  ConstRows x;
  Rows y;
  std::int64_t rows = 0, width = 0;
  NormWeights weights;
  float eps = 0;

  void Check() const {
    CHECK_GT(width, 0);
    CHECK(weights.bias == nullptr || weights.offset == 0);
  }
};
LORAMUX_KERNEL(NormRows)

// Which elements of a head turn, and in which pairs.
struct RopeShape {
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;  // the first ones; even, at most head_dim
  bool adjacent_pairs = false;  // (2 t, 2 t + 1), else (t, t + rotary_dim / 2)
};

// Rotates the pairs of each of `heads` heads of each row in place, as transformers' apply_rotary_pos_emb does.
struct RopeArguments {
  Rows x;
  std::int64_t rows = 0, heads = 0;
  RopeShape shape;
  const float* cos = nullptr;  // [rows, rotary_dim / 2]
  const float* sin = nullptr;

  void Check() const {
    CHECK_EQ(shape.rotary_dim % 2, 0);
    CHECK_LE(shape.rotary_dim, shape.head_dim);
  }
};
LORAMUX_KERNEL(Rope)

// y[i, j] = f(gate[i, j]) * up[i, j], with gate = x[i, 0..width), up = x[i, width..2 width); or f(x[i, j]) if it is not
// `gated`. Then x and y may be the same.
struct GateMulArguments {
  ConstRows x;
  Rows y;
  std::int64_t rows = 0, width = 0;
  GateForm form;

  void Check() const { CHECK_GE(width, 0); }
};
LORAMUX_KERNEL(GateMul)

// y[i, :] += factor * x[i, :].
struct AddRowsArguments {
  ConstRows x;
  Rows y;
  std::int64_t rows = 0, width = 0;
  float factor = 1;

  void Check() const { CHECK_GE(width, 0); }
};
LORAMUX_KERNEL(AddRows)

// x[i, :] *= factor; then, if cap > 0, x[i, :] = cap * tanh(x[i, :] / cap), except where it is -infinity.
struct ScaleRowsArguments {
  Rows x;
  std::int64_t rows = 0, width = 0;
  float factor = 1, cap = 0;

  void Check() const { CHECK_GE(width, 0); }
};
LORAMUX_KERNEL(ScaleRows)

}  // namespace loramux
