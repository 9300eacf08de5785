// The feed-forward block of a layer, written once over a set of operations, as the rest of the forward pass
// (forward_pass.h): one block, a mixture of experts, or both.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "formats/adapter_config.h"
#include "formats/model_config.h"
#include "model/forward_ops.h"

namespace loramux {

// Not owning. What it computes is in the buffers of the batch that Begin names.
template <ForwardOps Ops>
class FeedForward {
 public:
  using Rows = typename Ops::Rows;
  using Layer = typename Ops::Weights::Layer;

  FeedForward(const ModelConfig& config, const typename Ops::Weights& weights, Ops& ops)
      : config_(config), weights_(weights), ops_(ops) {}

  void Begin(const ForwardBuffers<Rows>& buffers, std::int64_t rows) {
    b_ = buffers;
    rows_ = rows;
  }

  // normed = the output of the feed-forward block of x, of the layer's experts, or of both.
  void Run(std::int64_t layer, const Layer& w, const Rows& x) {
    if (!config_.HasExperts(layer)) {
      Input(layer, w, x);
      return Output(layer, w);
    }
    const ExpertsConfig& experts = *config_.experts;
    if (experts.beside_block) return Beside(layer, w, x);
    Linear(layer, x, w.router, w.router_bias, b_.router, {{LoraTarget::kRouter, b_.router}});
    if (experts.shared_gate) {
      const Rows gate = b_.router.From(experts.route.experts);
      Linear(layer, x, w.shared_gate, weights_.no_bias, gate, {{LoraTarget::kSharedGate, gate}});
    }
    ops_.Route(w.route_bias, b_.router, w.expert_scales, x, b_.chosen);
    if (experts.shared_size > 0) Input(layer, w, x);
    Chosen(layer, w);
    if (experts.shared_size > 0) Output(layer, w);
    ops_.CombineChosen(b_.chosen, b_.router, b_.normed);
  }

  // activated = f(gate(x)) * up(x), or f(up(x)): the block without experts, before down.
  void Input(std::int64_t layer, const Layer& w, const Rows& x) {
    if (config_.gated) {
      const Rows up = b_.gate_up.From(config_.BlockSize(layer));
      Linear(layer, x, w.gate_up, w.gate_up_bias, b_.gate_up, {{LoraTarget::kGate, b_.gate_up}, {LoraTarget::kUp, up}});
      ScaleIn(b_.gate_up, config_.BlockSize(layer), config_.block_scales.gate);
    } else {
      Linear(layer, x, w.gate_up, w.gate_up_bias, b_.gate_up, {{LoraTarget::kUp, b_.gate_up}});
    }
    ops_.GateMul(b_.gate_up, rows_, config_.BlockSize(layer), b_.activated);
  }

  // normed = down(activated)
  void Output(std::int64_t layer, const Layer& w) {
    Linear(layer, b_.activated, w.down, w.down_bias, b_.normed, {{LoraTarget::kDown, b_.normed}});
    ScaleIn(b_.normed, config_.hidden_size, config_.block_scales.down);
  }

 private:
  // chosen = what the chosen experts make of it.
  void Chosen(std::int64_t layer, const Layer& w) {
    const ExpertsConfig& experts = *config_.experts;
    const LoraOutput<Rows> parts[] = {
        {LoraTarget::kGate, b_.chosen_up},
        {LoraTarget::kUp, b_.chosen_up.From(config_.gated ? experts.intermediate_size : 0)}};
    ops_.ExpertLinear(layer, b_.chosen, w.expert_gate_up, w.expert_gate_up_bias, b_.chosen_up,
                      std::span(parts).subspan(config_.gated ? 0 : 1));
    ops_.GateMul(b_.chosen_up, rows_ * experts.route.per_token, experts.intermediate_size, b_.chosen_between);
    const LoraOutput<Rows> down[] = {{LoraTarget::kDown, b_.chosen}};
    ops_.ExpertLinear(layer, b_.chosen_between, w.expert_down, w.expert_down_bias, b_.chosen, std::span(down));
  }

  // normed = norm(block(x)) + norm(experts(norm(hidden))), where the router sees hidden by a norm of its own.
  void Beside(std::int64_t layer, const Layer& w, const Rows& x) {
    const NormOf norm = {.layer = layer, .of_base_alone = true};
    Input(layer, w, x);
    ops_.Norm(norm, b_.hidden, rows_, w.router_norm, b_.normed);
    Linear(layer, b_.normed, w.router, w.router_bias, b_.router, {{LoraTarget::kRouter, b_.router}});
    ops_.Norm(norm, b_.hidden, rows_, w.experts_norm, b_.normed);
    ops_.Route(w.route_bias, b_.router, w.expert_scales, b_.normed, b_.chosen);
    Chosen(layer, w);
    ops_.CombineChosen(b_.chosen, b_.router, b_.of_experts);
    ops_.NormOutput(norm, b_.of_experts, w.experts_output_norm);
    Output(layer, w);
    ops_.NormOutput(norm, b_.normed, w.block_output_norm);
    ops_.Add(b_.of_experts, b_.normed);
  }

  void Linear(std::int64_t layer, const Rows& x, const typename Ops::Weights::Matrix& w,
              const typename Ops::Weights::Vector& bias, const Rows& y,
              std::initializer_list<LoraOutput<Rows>> outputs) {
    ops_.Linear(layer, x, rows_, w, bias, y, std::span<const LoraOutput<Rows>>(outputs.begin(), outputs.size()));
  }

  // x *= factor, in all rows.
  void ScaleIn(const Rows& x, std::int64_t width, double factor) {
    if (factor != 1) ops_.Scale(x, rows_, width, static_cast<float>(factor), 0.0f);
  }

  const ModelConfig& config_;
  const typename Ops::Weights& weights_;
  Ops& ops_;
  ForwardBuffers<Rows> b_;
  std::int64_t rows_ = 0;
};

}  // namespace loramux
