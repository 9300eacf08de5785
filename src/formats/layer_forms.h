// What layers of a model may be: their rotary embeddings, norms, heads, experts and factors.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "formats/routing.h"

namespace loramux {

// Rotary position embedding. `kDynamic` is NTK scaling by the current length ("dynamic" in transformers).
struct RopeConfig {
  enum class Scaling { kNone, kLinear, kDynamic, kLlama3, kYarn, kLongRope, kProportional };
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  // llama3, yarn; longrope: longer sequences take the long factors; dynamic: always max_position, as in transformers.
  std::int64_t original_max_position = 0;
  double beta_fast = 32.0, beta_slow = 1.0;         // yarn
  bool truncate = true;                             // yarn: its limits are rounded to whole pairs
  std::vector<double> short_factors, long_factors;  // longrope: by which wavelengths grow, [rotary_dim / 2] each
  double attention_factor = 1.0;                    // by which cosines and sines are multiplied
  // b: the query at position p is also multiplied by 1 + b log(1 + floor(p / original_max_position)).
  double query_beta = 0.0;
  std::int64_t rotary_dim = 0;  // elements at the start of each head that turn; even, at most head_dim
  bool adjacent_pairs = false;  // the elements 2 k and 2 k + 1 turn together, not k and k + rotary_dim / 2
  // proportional: how many of the pairs turn, the first ones; the frequencies are those of a whole head.
  std::int64_t turning_pairs = 0;
};

// Which rotary embedding a layer has: ModelConfig::rope, ModelConfig::local_rope, or none.
enum class LayerRope : std::uint8_t { kMain, kLocal, kNone };

// Which norms stand around each of a layer's two blocks, attention and feed-forward: before it, after it (its output is
// normed before it is added), or both; or after it, of the sum, which the next block reads and adds to.
enum class NormPlaces : std::uint8_t { kBefore, kAfter, kBoth, kOfSum };

// kRms: x / rms(x) * weight. kLayer: (x - mean) / deviation * weight + bias.
enum class NormKind : std::uint8_t { kRms, kLayer };

// How attention and the feed-forward block follow each other: the second reads what the first has added to, or both
// read the same, under norms of their own or under one norm.
enum class BlockOrder : std::uint8_t { kSequential, kParallel, kParallelOneNorm };

// Norms of q and k: none, of each head, or of the heads of a row together. kLayerOfHeads: a LayerNorm without a bias,
// of each head with weights of its own.
enum class QkNorm : std::uint8_t { kNone, kHeads, kRow, kLayerOfHeads };

// Attention with linear biases: the further a key lies back, the lower its score. kExact: by a slope of the head for
// each position. kBf16: products of queries and keys, before they are scaled, get the product of slope and position in
// bfloat16 more, as in Falcon. model/alibi.h has the slopes.
enum class Alibi : std::uint8_t { kNone, kExact, kBf16 };

// The heads of a layer.
struct HeadShape {
  std::int64_t num_kv_heads = 0, head_dim = 0;
  friend bool operator==(const HeadShape&, const HeadShape&) = default;
};

// A mixture of experts: what the chosen experts of a token give is added, each times its weight.
struct ExpertsConfig {
  RouteForm route;
  bool router_bias = false;            // the router's logits have a bias
  bool route_bias = false;             // the scores that choose have a bias, which does not weigh
  bool biases = false;                 // the experts' matrices have biases
  std::int64_t intermediate_size = 0;  // width of one expert's feed-forward block
  // Such a layer also has a feed-forward block of its own for all tokens, the shared expert; its output is multiplied
  // by the sigmoid of a product with the input if it has a gate.
  std::int64_t shared_size = 0;  // 0: there is none
  bool shared_gate = false;
  // The experts stand beside the layer's own block, and take the hidden state as it does. Both, and the router, have
  // norms of their own; what an expert returns is multiplied by a number too (Gemma 4).
  bool beside_block = false;
  std::vector<bool> layers;  // by layer: whether it has experts
};

// Factors within the blocks of a layer (Falcon-H1), of what goes into products and of what comes out of them.
struct BlockScales {
  double attention_in = 1, attention_out = 1, states_in = 1, states_out = 1;
  // The parts of what Mamba-2's in_proj gives: z, values, keys, queries, steps.
  std::array<double, 5> states = {1, 1, 1, 1, 1};
  double gate = 1, down = 1;  // the feed-forward block's
  friend bool operator==(const BlockScales&, const BlockScales&) = default;
};

// What a layer has: attention or a recurrence, a feed-forward block, or both.
enum class LayerPart : std::uint8_t { kBoth, kMixer, kFeedForward };

}  // namespace loramux
