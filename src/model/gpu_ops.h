// The operations of the forward pass on a device: launches of kernels on a stream. The second instance of ForwardOps.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "assist/assist_pool.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/result.h"
#include "gpu/device.h"
#include "gpu/kernels/experts.h"
#include "gpu/kernels/skinny.h"
#include "gpu/kernels/states.h"
#include "model/device_lora.h"
#include "model/device_model.h"
#include "model/device_weights.h"
#include "model/device_workspace.h"
#include "model/forward_pass.h"
#include "model/gpu_rows.h"
#include "model/step_rows.h"
#include "tensor/kv_layout.h"
#include "tensor/page_arena.h"

namespace loramux {

// Where and how one step is computed on a device. Not owning.
struct GpuForward : DevicePlace {  // its `assist` has the step's segments, uploaded
  const StepBatch& step;
  StepResult& result;
  const DeviceProperties& device;
  DType dtype = DType::kF32;  // type of the inputs of products
  bool waits = false;         // whether to wait for the step's arrivals
};

// ForwardPass asks for these in models with inputs of layers alone, which DeviceModel refuses by name, before it reads
// a weight.
struct NoLayerInputs {
  static void MixLayerInputs(GpuRows /*context*/, const DeviceWeights::Norm& /*weights*/, GpuRows /*inputs*/) {
    CHECK(false);
  }
  static void GateLayerInput(std::int64_t /*layer*/, GpuRows /*gate*/, GpuRows /*y*/) { CHECK(false); }
};

// The operations; lives as long as one forward pass. Nothing has ended when they return, but what Finish says.
//
// Neighbouring operations are one launch where a kernel does both: an Add goes into the Norm that follows it;
// NormHeads, Rope and StoreKv are one; a MatMul of few rows and the first half of the Lora that follows it are one,
// unless the device is batch-invariant; in a batch of few rows the other half goes into StoreKv, GateMul, or Norm.
class GpuOps : public NoLayerInputs {
 public:
  using Rows = GpuRows;
  using Adapter = DeviceLoraView;
  using Weights = DeviceWeights;
  using Matrix = DeviceMatrix;
  using NormVectors = Weights::Norm;
  using Vector = DeviceVector;
  static constexpr bool kMixesMamba = true;  // MixStates

  // REQUIRES: workspace.Prepare succeeded. Work that is enqueued through it comes after workspace.Upload.
  GpuOps(const ModelConfig& config, DeviceWorkspace& workspace, const GpuForward& forward)
      : config_(config), w_(workspace), f_(forward), b_(workspace.activations().rows), step_(workspace.step.step()) {}

  ForwardBuffers<Rows> Begin(const StepRows<DeviceLoraView>& batch);
  void EmbedRows(const Matrix& table, Rows hidden);
  void EmbedOwnRows(Rows hidden);
  void EmbedPositions(const Matrix& table, Rows hidden);
  // The stream waits for arrivals with events; for others the host does. After a failure the pass goes on with the
  // pages' arbitrary content, as on the CPU.
  void AwaitLayer(std::int64_t layer);
  void Norm(NormOf norm, Rows x, std::int64_t rows, const NormVectors& weights, Rows y);
  Rows Input(Rows x, std::int64_t rows, std::int64_t width, Rows y);
  void NormOutput(NormOf norm, Rows x, const NormVectors& weights) { NormRow(norm, x, config_.hidden_size, weights); }
  void NormHeads(NormOf norm, Rows x, std::int64_t heads, const NormVectors& weights);
  void NormRow(NormOf norm, Rows x, std::int64_t width, const NormVectors& weights);
  void Linear(std::int64_t layer, Rows x, std::int64_t rows, const Matrix& w, const Vector& bias, Rows y,
              std::span<const LoraOutput<Rows>> outputs);
  void Rope(std::int64_t layer, Rows x, std::int64_t heads);
  void StoreKv(std::int64_t layer, Rows k, Rows v);
  void Attention(std::int64_t layer, std::int64_t window, const Vector& sinks, const Vector& slopes, Rows q, Rows out);
  void SplitGates(std::int64_t layer, Rows x, Rows gates);
  void MulSigmoid(std::int64_t layer, Rows gates, Rows y);
  void MixStates(std::int64_t layer, const StateWeightsOf<Vector>& weights, Rows x, Rows gates, Rows mixed, Rows out);
  void GateMul(Rows gate_up, std::int64_t rows, std::int64_t width, Rows y);
  void Route(const Vector& bias, Rows router, const Vector& scales, Rows x, Rows chosen);
  void ExpertLinear(std::int64_t layer, Rows x, const std::vector<Matrix>& w, const std::vector<Vector>& bias, Rows y,
                    std::span<const LoraOutput<Rows>> outputs);
  void CombineChosen(Rows chosen, Rows router, Rows y);
  void Add(Rows x, Rows y);
  void Scale(Rows x, std::int64_t rows, std::int64_t width, float factor, float cap);
  void GatherLogitRows(const LogitBlock& block, Rows hidden, Rows y);
  void Sample(Rows logits, const SampleBatch& samples);
  void Score(Rows logits, std::span<const ScoreRow> scores);
  void Pool(Rows x, const PoolBatch& pools);

  // Waits for the stream and completes the results. Error: the device is lost.
  Status Finish();
  // Time that AwaitLayer waited on the host.
  TimeNs waited() const { return waited_; }

 private:
  // Launch what waits for the operation that follows it.
  void FlushAdd();
  void FlushProduct();
  void FlushExpand();
  void Flush() {
    FlushProduct();
    FlushExpand();
    FlushAdd();
  }
  // Rows of a launch over the batch's rows, or over those of a block of logits, which `x` tells apart.
  std::int64_t MaxRows(Rows x) const { return OfLogits(x) ? block_->max_rows : step_.max_rows; }
  bool OfLogits(Rows x) const {
    const bool of_block = x.wide == b_.last_hidden.wide || x.wide == b_.logits.wide || x.wide == b_.last_embedded.wide;
    return x.wide != nullptr && of_block;
  }
  void MatMul(Rows x, std::int64_t rows, const Matrix& w, const Vector& bias, Rows y);
  // Launches nothing unless y are logits, and there are tokens or rows of the output matrix that adapters bring.
  void PutOwnProducts(Rows x, Rows y);
  // Launches nothing if no adapter of the batch changes the targets.
  void LaunchLora(std::int64_t layer, Rows x, std::span<const LoraOutput<Rows>> outputs);
  // The processor's part of the products that follow x: hands x over, and adds the answers.
  void SendActivations(Rows x, Rows y);
  void AddAnswers(std::int64_t layer, Rows x, std::span<const LoraOutput<Rows>> outputs);
  std::int32_t Block() const { return static_cast<std::int32_t>(block_ - step_.blocks.data()); }
  // The rows that the pass takes for a layer's queries. Where gates lie beside these, they stay at the begin of qkv,
  // each head before its gates.
  const float* QueriesOf(std::int64_t layer) const {
    return b_.qkv.wide + config_.QProjDim(layer) - config_.QDim(layer);
  }
  // out.low = the norm of out.wide with the gates z, in a recurrent layer.
  void NormGated(const StateWeightsOf<Vector>& weights, Rows z, Rows out);
  // Launches a norm with the Add and the expand that wait for it. Without weights, y = x.
  void LaunchNorm(Rows x, std::int64_t width, const NormVectors& weights, gpu::OwnNorm own, Rows y);

  const ModelConfig& config_;
  DeviceWorkspace& w_;
  const GpuForward& f_;
  const ForwardBuffers<GpuRows>& b_;
  const StepOnDevice& step_;
  std::int64_t layer_ = 0;
  const StepLogitBlock* block_ = nullptr;        // rows that GatherLogitRows gathered last
  Rows added_, added_to_;                        // operands of an Add that was not launched yet
  gpu::SkinnyMatMulLoraArguments product_ = {};  // a MatMul that was not launched yet; w null: none
  gpu::LoraExpandArguments expand_ = {};         // the second half of a Lora that was not launched yet; slices 0: none
  const float *q_norm_ = nullptr, *k_norm_ = nullptr;
  std::optional<LayerRope> rope_;  // the rotary embedding of q and k until they are stored
  gpu::OwnNorm own_q_, own_k_;
  OsClock clock_;
  TimeNs waited_ = 0;
};

static_assert(ForwardOps<GpuOps> && StateOps<GpuOps>);

}  // namespace loramux
