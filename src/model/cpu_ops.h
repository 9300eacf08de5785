// The operations of the forward pass on the CPU: calls of the kernels. The first instance of ForwardOps.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "kernels/attention.h"
#include "kernels/experts.h"
#include "kernels/kernel_context.h"
#include "kernels/lora.h"
#include "kernels/own_rows.h"
#include "kernels/states.h"
#include "model/forward_pass.h"
#include "model/lora_view.h"
#include "model/model.h"
#include "model/part_exchange.h"
#include "model/rope.h"
#include "model/sampler.h"
#include "model/step_rows.h"
#include "model/weights.h"
#include "tensor/aligned_buffer.h"
#include "tensor/kv_layout.h"

namespace loramux {

// Rows of activations; their number changes from batch to batch.
class CpuRowBuffer {
 public:
  // Rows begin on cache lines.
  explicit CpuRowBuffer(std::int64_t width) : stride_((width + 15) / 16 * 16) {}
  // Provides memory for `rows` rows; their content is lost if it grows.
  Rows Ensure(std::int64_t rows) {
    buffer_.Reserve(rows * stride_);
    return {buffer_.data(), stride_};
  }

 private:
  std::int64_t stride_;
  AlignedBuffer<float> buffer_;
};

// The memory in which batches are computed. It grows to the largest batch; then nothing allocates.
struct CpuWorkspace {
  // `config`: of the part that is computed; `whole`: of the model.
  CpuWorkspace(const ModelConfig& config, const ModelConfig& whole, const ModelPart& part);
  explicit CpuWorkspace(const ModelConfig& config) : CpuWorkspace(config, config, {}) {}
  // As Model::Reserve.
  void Reserve(const ModelConfig& config, std::int64_t max_tokens, std::int64_t max_logit_rows,
               std::int64_t max_positions, std::int64_t max_rank, int threads);

  RopeTable rope;
  std::optional<RopeTable> local_rope;
  StepRows<LoraView> batch;
  std::vector<AttentionSequence> sequences;
  std::vector<StateSequence> state_sequences;
  std::array<std::vector<LoraSegment>, kMaxSharedInput> segments;  // segments of the current linear layers
  std::vector<OwnSegment> own_segments;                            // segments of the current rows of logits
  CpuRowBuffer hidden, normed, qkv, attended, gate_up, activated;  // one row per token
  CpuRowBuffer embedded, last_embedded, layer_inputs, layer_context, layer_gate, layer_gated;
  CpuRowBuffer output_gates, mixed, state_gates;
  CpuRowBuffer last_hidden;  // one row per row of logits
  // Of mixtures of experts: the router's rows, one per token, and the chosen experts, per_token for each; the rows of
  // the chosen, sorted by expert.
  CpuRowBuffer router, chosen, chosen_up, chosen_between;
  std::vector<std::int32_t> experts;
  std::vector<float> expert_weights;
  ChosenRows chosen_rows;
  // Places of the chosen that one expert and one adapter have.
  struct ExpertRun {
    std::int64_t expert = 0, begin = 0, end = 0;
    const LoraView* adapter = nullptr;
  };
  std::vector<ExpertRun> expert_runs;
  // The angles of ModelConfig::rope and of local_rope.
  struct Angles {
    AlignedBuffer<float> cosines, sines;  // [num_rows, rotary_dim / 2]
  };
  std::array<Angles, 2> angles;
  AlignedBuffer<float> logits, lora, attention, states;
  PartExchange exchange;
  CpuRowBuffer part_output;             // this rank's outputs of layers whose outputs all ranks get
  std::vector<std::int64_t> owners;     // by row of the batch: the rank that has its token's embedding
  std::vector<SamplerScratch> sampler;  // one per thread
};

// The operations; lives as long as one forward pass.
class CpuOps {
 public:
  using Rows = loramux::Rows;
  using Adapter = LoraView;
  using Weights = ModelWeights;
  using Matrix = ModelWeights::Matrix;
  using Vector = ModelWeights::Vector;
  using NormVectors = ModelWeights::Norm;
  static constexpr bool kMixesMamba = true;  // MixStates

  // Tokens, scores and sums go to `result`.
  CpuOps(const ModelConfig& config, CpuWorkspace& workspace, const CpuPlace& place, StepResult& result)
      : config_(config), w_(workspace), f_(place), result_(result) {}

  ForwardBuffers<Rows> Begin(const StepRows<LoraView>& batch);
  void EmbedRows(const Matrix& table, Rows hidden);
  void EmbedOwnRows(Rows hidden);
  void EmbedPositions(const Matrix& table, Rows hidden);
  // Blocks until the layer has arrived everywhere. After a failure the pass goes on with the pages' arbitrary content:
  // rows do not depend on each other, and the engine discards those of the affected requests.
  void AwaitLayer(std::int64_t layer);
  void Norm(NormOf norm, Rows x, std::int64_t rows, const NormVectors& weights, Rows y);
  Rows Input(Rows x, std::int64_t /*rows*/, std::int64_t /*width*/, Rows /*y*/) { return x; }
  void NormOutput(NormOf norm, Rows x, const NormVectors& weights) { Norm(norm, x, batch_->num_rows, weights, x); }
  void NormHeads(NormOf norm, Rows x, std::int64_t heads, const NormVectors& weights);
  void NormRow(NormOf norm, Rows x, std::int64_t width, const NormVectors& weights);
  // One kernel, and no work for adapters if none changes the targets. Own rows of lm_head are a kernel of their own.
  void Linear(std::int64_t layer, Rows x, std::int64_t rows, const Matrix& w, const Vector& bias, Rows y,
              std::span<const LoraOutput<Rows>> outputs);
  void Rope(std::int64_t layer, Rows x, std::int64_t heads);
  void StoreKv(std::int64_t layer, Rows k, Rows v);
  void Attention(std::int64_t layer, std::int64_t window, const Vector& sinks, const Vector& slopes, Rows q, Rows out);
  void SplitGates(std::int64_t layer, Rows x, Rows gates);
  void MulSigmoid(std::int64_t layer, Rows gates, Rows y);
  void MixStates(std::int64_t layer, const StateWeightsOf<Vector>& weights, Rows x, Rows gates, Rows mixed, Rows out);
  void GateMul(Rows gate_up, std::int64_t rows, std::int64_t width, Rows y);
  void Route(Rows router, Rows x, Rows chosen);
  void ExpertLinear(std::int64_t layer, Rows x, const std::vector<Matrix>& w, const std::vector<Vector>& bias, Rows y,
                    std::span<const LoraOutput<Rows>> outputs);
  void CombineChosen(Rows chosen, Rows router, Rows y);
  void MixLayerInputs(Rows context, const NormVectors& weights, Rows inputs);
  void GateLayerInput(std::int64_t layer, Rows gate, Rows y);
  void Add(Rows x, Rows y);
  void Scale(Rows x, std::int64_t rows, std::int64_t width, float factor, float cap);
  void GatherLogitRows(const LogitBlock& block, Rows hidden, Rows y);
  void Sample(Rows logits, const SampleBatch& samples);
  void Score(Rows logits, std::span<const ScoreRow> scores);
  void Pool(Rows x, const PoolBatch& pools);

  // Why parts could not be exchanged; nullopt: they were, or the model is whole.
  const std::optional<Error>& error() const { return w_.exchange.error(); }
  // Time that AwaitLayer waited.
  TimeNs waited() const { return waited_; }

 private:
  PagesOfLayer PagesOf(std::int64_t layer) const;
  void PrepareRope(RopeTable& table, CpuWorkspace::Angles& angles) const;
  void PrepareSampler();
  // Mamba-2's recurrence behind the convolution, and its norm. `place`: of the heads' states.
  void Scan(const StateWeightsOf<Vector>& weights, const StatePlace& place, Rows mixed, Rows steps, Rows z, Rows out);
  // The product and its LoRA for the outputs that this rank computes, which begin at column `first` of y.
  void OwnLinear(std::int64_t layer, Rows x, std::int64_t rows, const Matrix& w, const Vector& bias, Rows y,
                 std::int64_t first, std::span<const LoraOutput<Rows>> outputs);
  void OwnExpertLinear(std::int64_t layer, Rows x, const std::vector<Matrix>& w, const std::vector<Vector>& bias,
                       Rows y, std::span<const LoraOutput<Rows>> outputs);
  // The rows of logits that adapters bring for tokens in [first, end). Returns whether there are any.
  bool CollectOwnSegments(std::int64_t first, std::int64_t end);
  // Finds ChosenRows' runs of the batch's adapters; the rows of what they change.
  void CollectExpertRuns();
  std::int64_t CollectExpertSegments(std::int64_t layer, LoraTarget target, std::vector<LoraSegment>& segments) const;
  // Calls fn(begin, end, weights) for rows [0, rows) in runs with the same weights of a norm. Adapters as in `groups`.
  template <typename F>
  void ForEachNorm(NormOf norm, std::span<const AdapterRowsOf<LoraView>> groups, std::int64_t rows,
                   const NormVectors& weights, const F& fn) const;
  std::int64_t CollectSegments(std::int64_t layer, const LoraOutput<Rows>& output, std::vector<LoraSegment>& segments);
  // Whether they are the rows of the block of logits that was gathered last.
  bool IsOfBlock(Rows y) const;

  const ModelConfig& config_;
  CpuWorkspace& w_;
  const CpuPlace& f_;
  StepResult& result_;
  const StepRows<LoraView>* batch_ = nullptr;
  LogitBlock block_;  // block that GatherLogitRows gathered last
  OsClock clock_;
  TimeNs waited_ = 0;
};

static_assert(ForwardOps<CpuOps> && StateOps<CpuOps>);

}  // namespace loramux
