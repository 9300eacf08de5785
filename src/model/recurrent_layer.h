// What the forward pass does in a recurrent layer, in place of attention or beside it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "formats/model_config.h"
#include "model/forward_ops.h"

namespace loramux {

// One layer in one forward pass. Not owning.
template <ForwardOps Ops>
class RecurrentLayer {
 public:
  using Rows = typename Ops::Rows;
  using Layer = typename Ops::Weights::Layer;
  using Vector = typename Ops::Weights::Vector;

  RecurrentLayer(const ModelConfig& config, std::int64_t layer, const Layer& weights, const Vector& no_bias, Ops& ops,
                 const ForwardBuffers<Rows>& buffers, std::int64_t rows)
      : config_(config), layer_(layer), w_(weights), no_bias_(no_bias), ops_(ops), b_(buffers), rows_(rows) {}

  // attended = what the layer makes of the block's input x and of its states. It may scale x.
  void Mix(const Rows& x) {
    if (config_.recurrent->mamba) {
      const bool beside = config_.recurrent->beside_attention;
      Scale(x, config_.hidden_size, config_.block_scales.states_in);
      Linear(x, beside ? w_.state_in : w_.qkv, beside ? w_.state_in_bias : w_.qkv_bias, b_.qkv,
             {{LoraTarget::kInAll, b_.qkv}});
      ScaleParts();
    } else {
      const std::int64_t heads = config_.recurrent->value_heads;
      const Rows z = b_.qkv.From(config_.recurrent->Channels()), a = b_.state_gates.From(heads);
      Linear(x, w_.qkv, w_.qkv_bias, b_.qkv, {{LoraTarget::kInQkv, b_.qkv}, {LoraTarget::kInZ, z}});
      Linear(x, w_.state_gates, no_bias_, b_.state_gates, {{LoraTarget::kInB, b_.state_gates}, {LoraTarget::kInA, a}});
    }
    if constexpr (StateOps<Ops>) {
      ops_.MixStates(layer_, w_.states, b_.qkv, b_.state_gates, b_.mixed, b_.attended);
    }
  }

  // hidden += out_proj(attended), where attention of the same input x follows, which it scales for that.
  void AddOutput(const Rows& x) {
    const BlockScales& scales = config_.block_scales;
    Linear(b_.attended, w_.state_out, w_.state_out_bias, b_.mixed, {{LoraTarget::kOut, b_.mixed}});
    Scale(b_.mixed, config_.hidden_size, scales.states_out);
    ops_.Add(b_.mixed, b_.hidden);
    Scale(x, config_.hidden_size, scales.attention_in / scales.states_in);
  }

 private:
  void Scale(const Rows& x, std::int64_t width, double factor) {
    if (factor != 1) ops_.Scale(x, rows_, width, static_cast<float>(factor), 0.0f);
  }

  // What Mamba-2's in_proj gives, by its parts.
  void ScaleParts() {
    const RecurrentConfig& r = *config_.recurrent;
    const std::int64_t keys = r.key_heads * r.key_dim;
    std::int64_t first = 0;
    std::size_t part = 0;
    for (const std::int64_t width : {r.Values(), r.Values(), keys, keys, r.value_heads}) {
      Scale(b_.qkv.From(first), width, config_.block_scales.states[part++]);
      first += width;
    }
  }

  void Linear(const Rows& x, const typename Ops::Weights::Matrix& w, const Vector& bias, const Rows& y,
              std::initializer_list<LoraOutput<Rows>> outputs) {
    ops_.Linear(layer_, x, rows_, w, bias, y, std::span<const LoraOutput<Rows>>(outputs.begin(), outputs.size()));
  }

  const ModelConfig& config_;
  const std::int64_t layer_;
  const Layer& w_;
  const Vector& no_bias_;
  Ops& ops_;
  const ForwardBuffers<Rows>& b_;
  const std::int64_t rows_;
};

}  // namespace loramux
