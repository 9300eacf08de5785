// The layers of a hybrid model that carry a state from token to token in place of keys and values: gated DeltaNet, or
// Mamba-2.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace loramux {

// What these layers have. Queries, keys and values pass a causal convolution together; each head of keys then serves
// value_heads / key_heads heads of values, one after the other. Mamba-2 has B for keys, C for queries, x for values,
// and groups for heads of keys.
struct RecurrentConfig {
  bool mamba = false;           // Mamba-2; else gated DeltaNet
  std::int64_t conv_width = 4;  // positions that the convolution sees
  std::int64_t key_heads = 0, value_heads = 0;
  std::int64_t key_dim = 0, value_dim = 0;  // elements of a head
  std::vector<bool> layers;                 // by layer: whether it is one of these
  bool beside_attention = false;            // these layers have attention too, of the same input
  // Mamba-2: whether the convolution, in_proj and out_proj have biases; between which limits a step lies.
  bool conv_bias = false, input_bias = false, output_bias = false;
  double least_step = 0, most_step = std::numeric_limits<double>::infinity();
  // Where Mamba-2's norm stands: after the gate, before it, or nowhere.
  enum class Norm : std::uint8_t { kAfterGate, kBeforeGate, kNone };
  Norm norm = Norm::kAfterGate;

  std::int64_t Values() const { return value_heads * value_dim; }
  // The rows of queries, keys and values together.
  std::int64_t Channels() const { return 2 * key_heads * key_dim + Values(); }
  // The rows of all that is computed of a layer's input at first: in_proj_qkv and in_proj_z, or Mamba-2's in_proj,
  // which has z, what passes the convolution, and the steps of the heads.
  std::int64_t InputRows() const { return Channels() + Values() + (mamba ? value_heads : 0); }
  std::int64_t NormSize() const { return !mamba ? value_dim : norm == Norm::kNone ? 0 : Values(); }
  // How many layers before `layer` are of these.
  std::int64_t Before(std::int64_t layer) const { return std::count(layers.begin(), layers.begin() + layer, true); }

  // The floats of a sequence's state in one layer: what the convolution has seen [conv_width - 1, Channels()], and from
  // ConvFloats() on the heads [value_heads, key_dim, value_dim]. Both begin on cache lines.
  std::int64_t ConvFloats() const { return RoundUp((conv_width - 1) * Channels()); }
  std::int64_t LayerFloats() const { return ConvFloats() + RoundUp(value_heads * key_dim * value_dim); }
  // The bytes in all layers.
  std::int64_t StateBytes() const {
    return std::count(layers.begin(), layers.end(), true) * LayerFloats() * static_cast<std::int64_t>(sizeof(float));
  }

 private:
  static std::int64_t RoundUp(std::int64_t floats) { return (floats + 15) / 16 * 16; }
};

}  // namespace loramux
