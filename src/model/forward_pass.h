// The forward pass, written once over a set of operations. A device brings its own operations (`Ops`), weights and
// activations; the order of the operations is here and nowhere else.
//
// Ops is a template parameter that satisfies ForwardOps, not a base class. Its types differ from device to device (a
// packed matrix, a handle of device memory, rows of floats), and a virtual interface would have to hide each of them. A
// program that serves on several devices chooses among executors, once a step, and not among operations.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "base/check.h"
#include "formats/adapter_config.h"
#include "formats/model_config.h"
#include "model/feed_forward.h"
#include "model/forward_ops.h"
#include "model/recurrent_layer.h"
#include "model/step_rows.h"

namespace loramux {

// One forward pass over a batch of any adapters, prefill and decode together. Not owning.
template <ForwardOps Ops>
class ForwardPass {
 public:
  using Rows = typename Ops::Rows;
  using Batch = StepRows<typename Ops::Adapter>;

  ForwardPass(const ModelConfig& config, const typename Ops::Weights& weights, Ops& ops)
      : config_(config), weights_(weights), ops_(ops), feed_forward_(config, weights, ops) {
    CHECK(StateOps<Ops> || (!config.recurrent && !config.output_gate));
    CHECK(MambaOps<Ops> || !config.recurrent || !config.recurrent->mamba);
  }

  // Computes the step: stores keys and values of all its tokens, computes the logits, and samples, scores and pools
  // what it says. Without `samples` it leaves the sampling to the caller. Returns where the ops keep the logits; they
  // are the rows of StepSequence::logit_rows if no row is scored.
  Rows Run(const Batch& batch, bool samples = true) {
    const StepBatch& step = *batch.step;
    rows_ = batch.num_rows;
    b_ = ops_.Begin(batch);
    feed_forward_.Begin(b_, rows_);
    const Rows embedded = Projects() ? b_.embedded : b_.hidden;
    ops_.EmbedRows(weights_.EmbeddingRows(), embedded);
    for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
      ops_.AwaitLayer(layer);
      if (layer == 0) EmbedRest(embedded);
      Blocks(layer, weights_.layers[static_cast<std::size_t>(layer)]);
    }
    if (batch.num_logit_rows > 0) Logits(batch.logits);
    if (samples && !step.samples.rows.empty()) {
      CHECK_EQ(static_cast<std::int64_t>(step.samples.rows.size()), batch.num_logit_rows);
      ops_.Sample(b_.logits, step.samples);
    }
    for (const LogitBlock& block : batch.scored) {
      Logits(block);
      const auto first = static_cast<std::size_t>(block.first - batch.num_logit_rows);
      ops_.Score(b_.logits, std::span(step.scores).subspan(first, static_cast<std::size_t>(block.count)));
    }
    if (!step.pools.ranges.empty()) {
      // Norms all rows: one norm more than the pass has anyway.
      const Rows last = LastInput(b_.hidden, rows_, b_.normed);
      ops_.Pool(Projects() ? ProjectOut(last, rows_, b_.embedded) : last, step.pools);
    }
    return b_.logits;
  }

 private:
  using Layer = typename Ops::Weights::Layer;

  bool Projects() const { return config_.embedding_size != 0; }

  void EmbedRest(const Rows& embedded) {
    ops_.EmbedOwnRows(embedded);
    if (Projects()) {
      const Rows x = ops_.Input(embedded, rows_, config_.EmbeddingSize(), embedded);
      Linear(0, x, rows_, weights_.project_in, weights_.no_bias, b_.hidden, {{LoraTarget::kProjectIn, b_.hidden}});
    }
    if (config_.embedding_norm) ops_.NormOutput({.of_base_alone = true}, b_.hidden, weights_.embedding_norm);
    if (config_.position_rows_before) ops_.EmbedPositions(weights_.positions, b_.hidden);
    if (config_.embedding_scale != 1) {
      ops_.Scale(b_.hidden, rows_, config_.hidden_size, static_cast<float>(config_.embedding_scale), 0.0f);
    }
    if (config_.layer_input_size == 0) return;
    ops_.EmbedRows(weights_.layer_embedding, b_.layer_inputs);
    const Rows x = ops_.Input(b_.hidden, rows_, config_.hidden_size, b_.normed);
    Linear(0, x, rows_, weights_.layer_context, weights_.no_bias, b_.layer_context,
           {{LoraTarget::kLayerContext, b_.layer_context}});
    ops_.MixLayerInputs(b_.layer_context, weights_.layer_context_norm, b_.layer_inputs);
  }

  // Adds what a layer makes of its own input.
  void AddLayerInput(std::int64_t layer, const Layer& w) {
    const Rows x = ops_.Input(b_.hidden, rows_, config_.hidden_size, b_.normed);
    Linear(layer, x, rows_, w.input_gate, weights_.no_bias, b_.layer_gate, {{LoraTarget::kInputGate, b_.layer_gate}});
    ops_.GateLayerInput(layer, b_.layer_gate, b_.layer_gated);
    Linear(layer, b_.layer_gated, rows_, w.input_projection, weights_.no_bias, b_.normed,
           {{LoraTarget::kInputProjection, b_.normed}});
    ops_.NormOutput({.of_base_alone = true}, b_.normed, w.layer_input_norm);
    ops_.Add(b_.normed, b_.hidden);
  }

  // What the last layer gives, as the input of products.
  Rows LastInput(const Rows& x, std::int64_t rows, const Rows& y) {
    if (!config_.final_norm) return ops_.Input(x, rows, config_.hidden_size, y);
    ops_.Norm({}, x, rows, weights_.final_norm, y);
    return y;
  }

  Rows ProjectOut(const Rows& x, std::int64_t rows, const Rows& y) {
    Linear(0, x, rows, weights_.project_out, weights_.no_bias, y, {{LoraTarget::kProjectOut, y}});
    return ops_.Input(y, rows, config_.EmbeddingSize(), y);
  }

  // The input of a block.
  Rows BlockInput(NormOf norm, const typename Ops::Weights::Norm& weight) {
    const bool before = config_.norm_places == NormPlaces::kBefore || config_.norm_places == NormPlaces::kBoth;
    if (!before) return ops_.Input(b_.hidden, rows_, config_.hidden_size, b_.normed);
    ops_.Norm(norm, b_.hidden, rows_, weight, b_.normed);
    return b_.normed;
  }

  // Adds the output of a block, which is in `normed`.
  void AddOutput(NormOf norm, const typename Ops::Weights::Norm& weight) {
    const bool after = config_.norm_places == NormPlaces::kAfter || config_.norm_places == NormPlaces::kBoth;
    if (after) ops_.NormOutput(norm, b_.normed, weight);
    ops_.Add(b_.normed, b_.hidden);
    if (config_.norm_places == NormPlaces::kOfSum) ops_.NormOutput(norm, b_.hidden, weight);
  }

  void NormQkv(std::int64_t layer, const Layer& w, const Rows& q, const Rows& k, const Rows& v) {
    const NormOf of_q = {OwnKind::kQNorm, layer}, of_k = {OwnKind::kKNorm, layer};
    const std::int64_t kv_heads = config_.HeadsOf(layer).num_kv_heads;
    if (config_.qk_norm == QkNorm::kHeads || config_.qk_norm == QkNorm::kLayerOfHeads) {
      ops_.NormHeads(of_q, q, config_.num_heads, w.q_norm);
      ops_.NormHeads(of_k, k, kv_heads, w.k_norm);
    } else if (config_.qk_norm == QkNorm::kRow) {
      ops_.NormRow(of_q, q, config_.QDim(layer), w.q_norm);
      ops_.NormRow(of_k, k, config_.KvDim(layer), w.k_norm);
    }
    if (config_.value_norm) ops_.NormHeads({.layer = layer, .of_base_alone = true}, v, kv_heads, w.v_norm);
  }

  // hidden += norm(o(attention(norm(hidden)))); hidden += norm(feed-forward(norm(hidden))), with those of the norms
  // that the model has. In parallel, both read the hidden state before either is added; nothing needs a buffer of its
  // own, because what a block reads of `normed` is used up before its output is there.
  void Blocks(std::int64_t layer, const Layer& w) {
    if (!config_.Has(LayerPart::kMixer, layer)) {
      feed_forward_.Run(layer, w, BlockInput({OwnKind::kInputNorm, layer}, w.input_norm));
      AddOutput({OwnKind::kMlpOutputNorm, layer}, w.mlp_output_norm);
      return;
    }
    const Rows x = Attention(layer, w);
    if (config_.block_order == BlockOrder::kSequential) {
      AttentionOutput(layer, w);
      if (!config_.Has(LayerPart::kFeedForward, layer)) return;
      feed_forward_.Run(layer, w, BlockInput({OwnKind::kMlpNorm, layer}, w.mlp_norm));
    } else {
      const bool one_norm = config_.block_order == BlockOrder::kParallelOneNorm;
      feed_forward_.Input(layer, w, one_norm ? x : BlockInput({OwnKind::kMlpNorm, layer}, w.mlp_norm));
      AttentionOutput(layer, w);
      feed_forward_.Output(layer, w);
    }
    AddOutput({OwnKind::kMlpOutputNorm, layer}, w.mlp_output_norm);
    if (config_.layer_input_size > 0) AddLayerInput(layer, w);
    if (config_.layer_scales) ops_.Scale(b_.hidden, rows_, config_.hidden_size, w.scale, 0.0f);
  }

  // attended = attention(rope(norm(qkv(x)))) of the block's input x, which it returns.
  Rows Attention(std::int64_t layer, const Layer& w) {
    const std::int64_t q_columns = config_.QProjDim(layer);
    const Rows q = b_.qkv.From(q_columns - config_.QDim(layer));  // behind which the gates make room
    const Rows k = b_.qkv.From(q_columns);
    const Rows v = b_.qkv.From(q_columns + config_.KvDim(layer));
    // Where v is k before its norm, the matrix has those rows twice, and what changes the one changes the other.
    const LoraTarget of_v = config_.ValuesAreKeys(layer) ? LoraTarget::kK : LoraTarget::kV;

    const Rows x = BlockInput({OwnKind::kInputNorm, layer}, w.input_norm);
    if (config_.IsRecurrent(layer)) {
      RecurrentLayer<Ops> recurrent(config_, layer, w, weights_.no_bias, ops_, b_, rows_);
      recurrent.Mix(x);
      if (!config_.HasAttention(layer)) return x;
      recurrent.AddOutput(x);
    }
    if (config_.SharesKv(layer)) {
      AttentionOfQueries(layer, w, x);
      return x;
    }
    Linear(layer, x, rows_, w.qkv, w.qkv_bias, b_.qkv, {{LoraTarget::kQ, b_.qkv}, {LoraTarget::kK, k}, {of_v, v}});
    if constexpr (StateOps<Ops>) {
      if (config_.output_gate) ops_.SplitGates(layer, b_.qkv, b_.output_gates);
    }
    NormQkv(layer, w, q, k, v);
    // q and k are adjacent, so one call rotates the heads of both.
    const std::int64_t heads = config_.num_heads + config_.HeadsOf(layer).num_kv_heads;
    if (config_.RopeOf(layer) != LayerRope::kNone) ops_.Rope(layer, q, heads);
    ops_.StoreKv(layer, k, v);
    const std::int64_t window = config_.sliding_window[static_cast<std::size_t>(layer)];
    ops_.Attention(layer, window, w.sinks, weights_.slopes, q, b_.attended);
    if constexpr (StateOps<Ops>) {
      if (config_.output_gate) ops_.MulSigmoid(layer, b_.output_gates, b_.attended);
    }
    return x;
  }

  // x *= factor, in all rows.
  void ScaleIn(const Rows& x, std::int64_t width, double factor) {
    if (factor != 1) ops_.Scale(x, rows_, width, static_cast<float>(factor), 0.0f);
  }

  // Attention of a layer that reads the keys and values of an earlier one.
  void AttentionOfQueries(std::int64_t layer, const Layer& w, const Rows& x) {
    Linear(layer, x, rows_, w.qkv, w.qkv_bias, b_.qkv, {{LoraTarget::kQ, b_.qkv}});
    ops_.NormHeads({OwnKind::kQNorm, layer}, b_.qkv, config_.num_heads, w.q_norm);
    ops_.Rope(layer, b_.qkv, config_.num_heads);
    const std::int64_t window = config_.sliding_window[static_cast<std::size_t>(layer)];
    ops_.Attention(config_.KvSource(layer), window, w.sinks, weights_.slopes, b_.qkv, b_.attended);
  }

  void AttentionOutput(std::int64_t layer, const Layer& w) {
    const LoraTarget target = config_.HasAttention(layer) ? LoraTarget::kO : LoraTarget::kOut;
    Linear(layer, b_.attended, rows_, w.o, w.o_bias, b_.normed, {{target, b_.normed}});
    ScaleIn(b_.normed, config_.hidden_size, config_.block_scales.attention_out);
    AddOutput({OwnKind::kAttentionOutputNorm, layer}, w.attention_output_norm);
  }

  // lm_head(norm(hidden)) of the block's rows.
  void Logits(const LogitBlock& block) {
    ops_.GatherLogitRows(block, b_.hidden, b_.last_hidden);
    Rows x = LastInput(b_.last_hidden, block.count, b_.last_hidden);
    if (Projects()) x = ProjectOut(x, block.count, b_.last_embedded);
    Linear(0, x, block.count, weights_.lm_head, weights_.no_bias, b_.logits, {{LoraTarget::kLmHead, b_.logits}});
    if (config_.logit_scale == 1 && config_.logit_soft_cap == 0) return;
    ops_.Scale(b_.logits, block.count, config_.vocab_size, static_cast<float>(config_.logit_scale),
               static_cast<float>(config_.logit_soft_cap));
  }

  void Linear(std::int64_t layer, const Rows& x, std::int64_t rows, const typename Ops::Weights::Matrix& w,
              const typename Ops::Weights::Vector& bias, const Rows& y,
              std::initializer_list<LoraOutput<Rows>> outputs) {
    ops_.Linear(layer, x, rows, w, bias, y, std::span<const LoraOutput<Rows>>(outputs.begin(), outputs.size()));
  }

  const ModelConfig& config_;
  const typename Ops::Weights& weights_;
  Ops& ops_;
  FeedForward<Ops> feed_forward_;
  ForwardBuffers<Rows> b_;
  std::int64_t rows_ = 0;
};

}  // namespace loramux
