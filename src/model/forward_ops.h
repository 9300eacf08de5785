// What the forward pass asks of a device: its operations.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "formats/adapter_config.h"
#include "formats/model_config.h"
#include "formats/operation_forms.h"
#include "model/model_weights.h"
#include "model/step_rows.h"
#include "step/pool_batch.h"
#include "step/sample_batch.h"

namespace loramux {

// The activations of a batch. Rows is a matrix with one row for each token (last_hidden and logits: for each row of
// logits); where it lies, and in which type, is the ops' affair. Rows::From(column) are the same rows from there on.
template <typename Rows>
struct ForwardBuffers {
  Rows hidden, normed;  // [hidden_size]
  Rows embedded;        // [EmbeddingSize], if that is not hidden_size
  // The layers' own inputs (ModelConfig::layer_input_size) of all layers; for one layer, the gate (with room for twice
  // that) and what it lets through.
  Rows layer_inputs, layer_context, layer_gate, layer_gated;
  Rows qkv;                 // [QDim + 2 KvDim] of a layer
  Rows attended;            // [QDim] of a layer
  Rows gate_up, activated;  // in a feed-forward block that is no expert: [GateUpDim], [BlockSize]
  // In mixtures of experts: the router's logits and that of the shared expert's gate; then rows for each chosen expert
  // of each token, sorted by expert: its input and its output, and what lies between.
  Rows router;                             // [experts + 1]
  Rows chosen, chosen_up, chosen_between;  // [hidden_size], [2 intermediate_size], [intermediate_size] of an expert
  Rows of_experts = {};                    // what they return, beside a block (ExpertsConfig::beside_block)
  Rows output_gates = {};                  // gates of attention's output (ModelConfig::output_gate): [QDim]
  Rows mixed = {}, state_gates = {};       // recurrent: the convolution's result, [Channels()]; gates, [2 value_heads]
  // As many rows as the largest block of logits.
  Rows last_hidden, last_embedded, logits;  // [hidden_size], [EmbeddingSize] as above, [vocab_size]
};

// The most linear layers that share an input: q, k and v.
inline constexpr std::size_t kMaxSharedInput = 3;

// The target of a LoRA product and the rows that it adds to.
template <typename Rows>
struct LoraOutput {
  LoraTarget target = LoraTarget::kQ;
  Rows y;
};

// The forms of the model's operations; of scores without sinks and slopes, which are weights.
inline GateForm GateOf(const ModelConfig& c) {
  return {c.activation, c.gated, static_cast<float>(c.swiglu_alpha), static_cast<float>(c.swiglu_limit)};
}
inline ScoreForm ScoresOf(const ModelConfig& c, std::int64_t window) {
  return {.scale = c.AttentionScale(),
          .soft_cap = static_cast<float>(c.attention_soft_cap),
          .window = static_cast<std::int32_t>(window),
          .rounds_bias = c.alibi == Alibi::kBf16};
}
inline float NormEpsilonOf(const ModelConfig& c) { return static_cast<float>(c.norm_eps); }
inline float NormOffsetOf(const ModelConfig& c) { return static_cast<float>(c.norm_weight_offset); }
// `router`: rows of the router's logits, each with the shared expert's gate behind them.
inline CombineForm CombineOf(const ExpertsConfig& c, const float* router, std::int64_t stride) {
  return {c.route.per_token, c.shared_size > 0, c.shared_gate ? router + c.route.experts : nullptr, stride};
}

// A norm of the model. `layer` is of no meaning for the final one.
struct NormOf {
  OwnKind kind = OwnKind::kFinalNorm;
  std::int64_t layer = 0;
  bool of_base_alone = false;  // adapters bring no weights of it; kind is of no meaning then
};

// What a device must be able to do. None of the operations needs to have ended when it returns, as long as each sees
// the results of the earlier ones: a device enqueues them on a stream. In all of them `rows` is a number of rows.
//
//   Begin(batch)                     provides the activations, and uploads what the batch needs; it stays until the end
//   EmbedRows(table, hidden)         the rows of the embedding table of the batch's tokens
//   EmbedOwnRows(hidden)             in their place, rows that the adapters bring, then += scale B (A's column of the
//                                    token) of LoRA of the embedding; both arrive with the first layer
//   AwaitLayer(layer)                before any read of a layer's adapters and cached keys and values; lm_head's count
//                                    as the last layer's. Waits for arrivals (memory/layer_progress.h), or makes the
//                                    stream wait
//   EmbedPositions(table, hidden)    adds the rows of a table of positions
//   Norm(norm, x, rows, weights, y)  y = the model's kind of norm of x: the input of products; x and y may be the same.
//                                    Adapters may bring their weights of this norm
//   Input(x, rows, width, y)         x itself as the input of products, in y or where it is: returns where
//   NormOutput(norm, x, weights)     the norm in place, of what products have written, or of the hidden state
//   NormHeads(norm, x, heads, weights) the same for each head of the norm's layer
//   NormRow(norm, x, width, weights) the same for the columns [0, width) of x together
//   Linear(layer, x, rows, w, bias, y, outputs) y = x W^T + bias; bias may be empty. `outputs` are columns of y, one
//                                    entry for each target: in rows whose adapter changes it, they += scale B (A x).
//                                    Rows of lm_head's W that an adapter brings take the place of W's. Logits of added
//                                    tokens (ModelConfig::AddTokens) without such a row are -infinity
//   Rope(layer, x, heads)            rotates each head in place by its row's position, by the layer's embedding
//   StoreKv(layer, k, v)             rounds to the pages' type and stores
//   Attention(layer, window, sinks, slopes, q, out) causal, over pages; window 0: all earlier positions; sinks: one
//                                    more logit for each head, without a value; slopes: AlibiSlopes; empty: none
//   GateMul(gate_up, rows, width, y) y = f(gate) * up, or f(up) without a gate, with the model's activation f
//   Route(bias, router, scales, x, chosen) chooses each row's experts by its logits (router) and the bias of scores;
//                                    scales: factors of the weights of the chosen, by expert; both may be empty;
//                                    chosen: the rows they get
//   ExpertLinear(layer, x, w, bias, y, outputs) as Linear, for the chosen rows, each by its expert's matrix
//   CombineChosen(chosen, router, y) y = (y times the sigmoid of the gate's logit, if the layer has a shared expert) +
//                                    the rows of its chosen experts, each times its weight
//   MixLayerInputs(context, weights, inputs) turns rows of the layers' embedding into the layers' inputs, in place
//   GateLayerInput(layer, gate, y)   y = f(gate) * the layer's input, with the model's activation f
//   Add(x, y)                        y += x times the model's residual scale
//   Scale(x, rows, width, factor, cap) x *= factor; then, if cap > 0, x = cap tanh(x / cap), except where it is
//                                    -infinity
//   GatherLogitRows(block, hidden, y) the rows of a block of logits; until the next call, Linear into last_embedded and
//                                    logits means them
//   Sample(logits, samples)          one token for each row of `samples`, which are the rows of the logits
//   Score(logits, scores)            a given token's log-probability for each row of `scores`, likewise; appends
//   Pool(x, pools)                   adds the rows [EmbeddingSize] of each range of `pools` to its sum, in their order
template <typename Ops>
concept ForwardOps = requires(Ops& ops, const StepRows<typename Ops::Adapter>& batch, typename Ops::Rows x,
                              const typename Ops::Weights& weights, std::int64_t n,
                              std::span<const LoraOutput<typename Ops::Rows>> outputs, const LogitBlock& block,
                              const SampleBatch& samples, std::span<const ScoreRow> scores, const PoolBatch& pools) {
  { ops.Begin(batch) } -> std::same_as<ForwardBuffers<typename Ops::Rows>>;
  { x.From(n) } -> std::same_as<typename Ops::Rows>;
  ops.EmbedRows(weights.EmbeddingRows(), x);
  ops.EmbedOwnRows(x);
  ops.EmbedPositions(weights.positions, x);
  ops.AwaitLayer(n);
  ops.Norm(NormOf(), x, n, weights.final_norm, x);
  { ops.Input(x, n, n, x) } -> std::same_as<typename Ops::Rows>;
  ops.NormOutput(NormOf(), x, weights.final_norm);
  ops.NormHeads(NormOf(), x, n, weights.final_norm);
  ops.NormRow(NormOf(), x, n, weights.final_norm);
  ops.Linear(n, x, n, weights.lm_head, weights.no_bias, x, outputs);
  ops.Rope(n, x, n);
  ops.StoreKv(n, x, x);
  ops.Attention(n, n, weights.no_bias, weights.slopes, x, x);
  ops.GateMul(x, n, n, x);
  ops.Route(weights.no_bias, x, weights.no_bias, x, x);
  ops.ExpertLinear(n, x, weights.layers[0].expert_gate_up, weights.layers[0].expert_gate_up_bias, x, outputs);
  ops.CombineChosen(x, x, x);
  ops.MixLayerInputs(x, weights.final_norm, x);
  ops.GateLayerInput(n, x, x);
  ops.Add(x, x);
  ops.Scale(x, n, n, 1.0f, 0.0f);
  ops.GatherLogitRows(block, x, x);
  ops.Sample(x, samples);
  ops.Score(x, scores);
  ops.Pool(x, pools);
};

// What a device must be able to do besides for models with recurrent layers, whose states lie in the first pages of
// each sequence (KvLayout::state_pages).
//
//   SplitGates(layer, x, gates)      x: the rows of a q_proj with gates: moves the queries of all heads to the end of
//                                    its columns, and copies the gates
//   MulSigmoid(layer, gates, y)      y *= the sigmoid of the gates, for the columns of a layer's queries
//   MixStates(layer, weights, x, gates, mixed, out) the recurrence of a layer over each sequence's rows, whose states
//                                    it updates: x: what in_proj_qkv and in_proj_z give, or Mamba-2's in_proj; gates:
//                                    in_proj_b and in_proj_a, of no meaning in Mamba-2; out: the input of out_proj. A
//                                    sequence's state begins with zeros at position 0
template <typename Ops>
concept StateOps = requires(Ops& ops, typename Ops::Rows x, const typename Ops::Weights& weights, std::int64_t n) {
  ops.SplitGates(n, x, x);
  ops.MulSigmoid(n, x, x);
  ops.MixStates(n, weights.layers[0].states, x, x, x, x);
};

// Whether the MixStates of such a device computes Mamba-2 too, and not gated DeltaNet alone.
template <typename Ops>
concept MambaOps = StateOps<Ops> && Ops::kMixesMamba;

}  // namespace loramux
