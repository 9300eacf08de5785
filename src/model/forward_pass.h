// The forward pass, written once over a set of operations. A device brings its own operations (`Ops`), weights and
// activations; the order of the operations is here and nowhere else.
//
// Ops is a template parameter that satisfies ForwardOps, not a base class. Its types differ from device to device (a
// packed matrix, a handle of device memory, rows of floats), and a virtual interface would have to hide each of them. A
// program that serves on several devices chooses among executors, once a step, and not among operations.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "base/check.h"
#include "base/pool_batch.h"
#include "base/sample_batch.h"
#include "formats/adapter_config.h"
#include "formats/model_config.h"
#include "model/forward_batch.h"
#include "model/model_weights.h"

namespace loramux {

// The activations of a batch. Rows is a matrix with one row for each token (last_hidden and logits: for each row of
// logits); where it lies, and in which type, is the ops' affair. Rows::From(column) are the same rows from there on.
template <typename Rows>
struct ForwardBuffers {
  Rows hidden, normed;       // [hidden_size]
  Rows qkv;                  // [QDim + 2 KvDim]
  Rows attended;             // [QDim]
  Rows gate_up, activated;   // [GateUpDim], [intermediate_size]
  Rows last_hidden, logits;  // [hidden_size], [vocab_size]; as many rows as the largest block of logits
};

// The most linear layers that share an input: q, k and v.
inline constexpr std::size_t kMaxSharedInput = 3;

// The target of a LoRA product and the rows that it adds to.
template <typename Rows>
struct LoraOutput {
  LoraTarget target = LoraTarget::kQ;
  Rows y;
};

// A norm of the model. `layer` is of no meaning for the final one.
struct NormOf {
  OwnKind kind = OwnKind::kFinalNorm;
  std::int64_t layer = 0;
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
//   Input(x, y)                      x itself as the input of products, in y or where it is: returns where
//   NormOutput(norm, x, weights)     the norm in place, of what products have written
//   NormHeads(norm, x, heads, weights) the same for each head
//   NormRow(norm, x, width, weights) the same for the columns [0, width) of x together
//   Linear(layer, x, rows, w, bias, y, outputs) y = x W^T + bias; bias may be empty. Then columns of y that are a
//                                    target, the `outputs`, += scale B (A x), for the rows whose adapter changes the
//                                    target. Rows of lm_head's W that an adapter brings take the place of W's. Logits
//                                    of added tokens (ModelConfig::AddTokens) without one are -infinity
//   Rope(which, x, heads)            rotates each head in place by its row's position, by one of the model's embeddings
//   StoreKv(layer, k, v)             rounds to the pages' type and stores
//   Attention(layer, window, q, out) causal, over pages; window 0: all earlier positions
//   GateMul(gate_up, y)              y = f(gate) * up, or f(up) without a gate, with the model's activation f
//   Add(x, y)                        y += x times the model's residual scale
//   Scale(x, rows, width, factor, cap) x *= factor; then, if cap > 0, x = cap tanh(x / cap), except where it is
//                                    -infinity
//   GatherLogitRows(block, hidden, y) the rows of a block of logits; until the next call, Linear of lm_head means them
//   Sample(logits, samples)          one token for each row of `samples`, which are the rows of the logits
//   Score(logits, scores)            a given token's log-probability for each row of `scores`, likewise; appends
//   Pool(normed, pools)              adds the rows of each range of `pools` to its sum, in their order
template <typename Ops>
concept ForwardOps = requires(Ops& ops, const ForwardBatch<typename Ops::Adapter>& batch, typename Ops::Rows x,
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
  { ops.Input(x, x) } -> std::same_as<typename Ops::Rows>;
  ops.NormOutput(NormOf(), x, weights.final_norm);
  ops.NormHeads(NormOf(), x, n, weights.final_norm);
  ops.NormRow(NormOf(), x, n, weights.final_norm);
  ops.Linear(n, x, n, weights.lm_head, weights.no_bias, x, outputs);
  ops.Rope(LayerRope::kMain, x, n);
  ops.StoreKv(n, x, x);
  ops.Attention(n, n, x, x);
  ops.GateMul(x, x);
  ops.Add(x, x);
  ops.Scale(x, n, n, 1.0f, 0.0f);
  ops.GatherLogitRows(block, x, x);
  ops.Sample(x, samples);
  ops.Score(x, scores);
  ops.Pool(x, pools);
};

// One forward pass over a batch of any adapters, prefill and decode together. Not owning.
template <ForwardOps Ops>
class ForwardPass {
 public:
  using Rows = typename Ops::Rows;
  using Batch = ForwardBatch<typename Ops::Adapter>;

  ForwardPass(const ModelConfig& config, const typename Ops::Weights& weights, Ops& ops)
      : config_(config), weights_(weights), ops_(ops) {}

  // Computes the batch: stores keys and values of all its tokens, computes the logits, and samples `samples` from them.
  // `samples` is null, or has one row for each row of logits. `scores` has one for each scored row of the batch.
  // `pools` is null, or has ranges of rows of the batch. Returns where the ops keep the logits; they are the rows of
  // SequenceChunkOf::logit_rows if no row is scored.
  Rows Run(const Batch& batch, const SampleBatch* samples, std::span<const ScoreRow> scores = {},
           const PoolBatch* pools = nullptr) {
    rows_ = batch.num_rows;
    b_ = ops_.Begin(batch);
    ops_.EmbedRows(weights_.EmbeddingRows(), b_.hidden);
    for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
      ops_.AwaitLayer(layer);
      if (layer == 0) EmbedRest();
      Blocks(layer, weights_.layers[static_cast<std::size_t>(layer)]);
    }
    if (batch.num_logit_rows > 0) Logits(batch.logits);
    if (samples != nullptr) {
      CHECK_EQ(static_cast<std::int64_t>(samples->rows.size()), batch.num_logit_rows);
      ops_.Sample(b_.logits, *samples);
    }
    for (const LogitBlock& block : batch.scored) {
      Logits(block);
      const auto first = static_cast<std::size_t>(block.first - batch.num_logit_rows);
      ops_.Score(b_.logits, scores.subspan(first, static_cast<std::size_t>(block.count)));
    }
    if (pools != nullptr && !pools->ranges.empty()) {
      // Of all rows: one norm more than the pass has anyway.
      ops_.Norm({}, b_.hidden, rows_, weights_.final_norm, b_.normed);
      ops_.Pool(b_.normed, *pools);
    }
    return b_.logits;
  }

 private:
  using Layer = typename Ops::Weights::Layer;

  void EmbedRest() {
    ops_.EmbedOwnRows(b_.hidden);
    if (config_.position_rows_before) ops_.EmbedPositions(weights_.positions, b_.hidden);
    if (config_.embedding_scale == 1) return;
    ops_.Scale(b_.hidden, rows_, config_.hidden_size, static_cast<float>(config_.embedding_scale), 0.0f);
  }

  // The input of a block.
  Rows BlockInput(NormOf norm, const typename Ops::Weights::Norm& weight) {
    if (config_.norm_places == NormPlaces::kAfter) return ops_.Input(b_.hidden, b_.normed);
    ops_.Norm(norm, b_.hidden, rows_, weight, b_.normed);
    return b_.normed;
  }

  // Adds the output of a block, which is in `normed`.
  void AddOutput(NormOf norm, const typename Ops::Weights::Norm& weight) {
    if (config_.norm_places != NormPlaces::kBefore) ops_.NormOutput(norm, b_.normed, weight);
    ops_.Add(b_.normed, b_.hidden);
  }

  void NormQk(std::int64_t layer, const Layer& w, const Rows& q, const Rows& k) {
    const NormOf of_q = {OwnKind::kQNorm, layer}, of_k = {OwnKind::kKNorm, layer};
    if (config_.qk_norm == QkNorm::kHeads) {
      ops_.NormHeads(of_q, q, config_.num_heads, w.q_norm);
      ops_.NormHeads(of_k, k, config_.num_kv_heads, w.k_norm);
    } else if (config_.qk_norm == QkNorm::kRow) {
      ops_.NormRow(of_q, q, config_.QDim(), w.q_norm);
      ops_.NormRow(of_k, k, config_.KvDim(), w.k_norm);
    }
  }

  // hidden += norm(o(attention(norm(hidden)))); hidden += norm(down(activated(norm(hidden)))), with those of the norms
  // that the model has. In parallel, both read the hidden state before either is added; nothing needs a buffer of its
  // own, because what a block reads of `normed` is used up before its output is there.
  void Blocks(std::int64_t layer, const Layer& w) {
    const Rows x = Attention(layer, w);
    if (config_.block_order == BlockOrder::kSequential) {
      AttentionOutput(layer, w);
      MlpInput(layer, w, BlockInput({OwnKind::kMlpNorm, layer}, w.mlp_norm));
    } else {
      const bool one_norm = config_.block_order == BlockOrder::kParallelOneNorm;
      MlpInput(layer, w, one_norm ? x : BlockInput({OwnKind::kMlpNorm, layer}, w.mlp_norm));
      AttentionOutput(layer, w);
    }
    Linear(layer, b_.activated, rows_, w.down, w.down_bias, b_.normed, {{LoraTarget::kDown, b_.normed}});
    AddOutput({OwnKind::kMlpOutputNorm, layer}, w.mlp_output_norm);
  }

  // attended = attention(rope(norm(qkv(x)))) of the block's input x, which it returns.
  Rows Attention(std::int64_t layer, const Layer& w) {
    const Rows q = b_.qkv;
    const Rows k = b_.qkv.From(config_.QDim());
    const Rows v = b_.qkv.From(config_.QDim() + config_.KvDim());

    const Rows x = BlockInput({OwnKind::kInputNorm, layer}, w.input_norm);
    Linear(layer, x, rows_, w.qkv, w.qkv_bias, b_.qkv, {{LoraTarget::kQ, q}, {LoraTarget::kK, k}, {LoraTarget::kV, v}});
    NormQk(layer, w, q, k);
    // q and k are adjacent, so one call rotates the heads of both.
    const LayerRope rope = config_.RopeOf(layer);
    if (rope != LayerRope::kNone) ops_.Rope(rope, q, config_.num_heads + config_.num_kv_heads);
    ops_.StoreKv(layer, k, v);
    ops_.Attention(layer, config_.sliding_window[static_cast<std::size_t>(layer)], q, b_.attended);
    return x;
  }

  void AttentionOutput(std::int64_t layer, const Layer& w) {
    Linear(layer, b_.attended, rows_, w.o, w.o_bias, b_.normed, {{LoraTarget::kO, b_.normed}});
    AddOutput({OwnKind::kAttentionOutputNorm, layer}, w.attention_output_norm);
  }

  // activated = f(gate(x)) * up(x), or f(up(x))
  void MlpInput(std::int64_t layer, const Layer& w, const Rows& x) {
    if (config_.gated) {
      const Rows up = b_.gate_up.From(config_.intermediate_size);
      Linear(layer, x, rows_, w.gate_up, w.gate_up_bias, b_.gate_up,
             {{LoraTarget::kGate, b_.gate_up}, {LoraTarget::kUp, up}});
    } else {
      Linear(layer, x, rows_, w.gate_up, w.gate_up_bias, b_.gate_up, {{LoraTarget::kUp, b_.gate_up}});
    }
    ops_.GateMul(b_.gate_up, b_.activated);
  }

  // lm_head(norm(hidden)) of the block's rows.
  void Logits(const LogitBlock& block) {
    ops_.GatherLogitRows(block, b_.hidden, b_.last_hidden);
    ops_.Norm({}, b_.last_hidden, block.count, weights_.final_norm, b_.last_hidden);
    Linear(0, b_.last_hidden, block.count, weights_.lm_head, weights_.no_bias, b_.logits,
           {{LoraTarget::kLmHead, b_.logits}});
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
  ForwardBuffers<Rows> b_;
  std::int64_t rows_ = 0;
};

}  // namespace loramux
