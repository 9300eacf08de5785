// A device's rounding on the CPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "formats/dtype.h"
#include "formats/model_config.h"
#include "model/cpu_ops.h"
#include "tensor/half_float.h"

namespace loramux::device_model_test {

// The operations of the CPU, with the inputs of products rounded to `dtype` as on a device. With pages of 16-bit types
// a device also rounds q and the weights of attention.
class RoundedOps : public CpuOps {
 public:
  RoundedOps(const ModelConfig& config, CpuWorkspace& workspace, const CpuPlace& place, StepResult& result, DType dtype)
      : CpuOps(config, workspace, place, result), c_(config), dtype_(dtype) {}

  ForwardBuffers<Rows> Begin(const StepRows<LoraView>& batch) {
    rows_ = batch.num_rows;
    return CpuOps::Begin(batch);
  }
  void Norm(NormOf norm, Rows x, std::int64_t rows, const NormVectors& weight, Rows y) {
    CpuOps::Norm(norm, x, rows, weight, y);
    Round(y, rows, c_.hidden_size);
  }
  Rows Input(Rows x, std::int64_t rows, std::int64_t width, Rows y) {
    for (std::int64_t row = 0; row < rows; ++row) {
      std::copy_n(x.data + row * x.stride, width, y.data + row * y.stride);
    }
    Round(y, rows, width);
    return y;
  }
  void NormOutput(NormOf norm, Rows x, const NormVectors& weight) { CpuOps::Norm(norm, x, rows_, weight, x); }
  void Attention(std::int64_t layer, std::int64_t window, const Vector& sinks, const Vector& slopes, Rows q, Rows out) {
    CpuOps::Attention(layer, window, sinks, slopes, q, out);
    if (!c_.output_gate) Round(out, rows_, c_.QDim(layer));
  }
  void MulSigmoid(std::int64_t layer, Rows gates, Rows y) {
    CpuOps::MulSigmoid(layer, gates, y);
    Round(y, rows_, c_.QDim(layer));
  }
  void MixStates(std::int64_t layer, const StateWeightsOf<Vector>& weights, Rows x, Rows gates, Rows mixed, Rows out) {
    CpuOps::MixStates(layer, weights, x, gates, mixed, out);
    Round(out, rows_, c_.recurrent->Values());
  }
  void GateLayerInput(std::int64_t layer, Rows gate, Rows y) {
    CpuOps::GateLayerInput(layer, gate, y);
    Round(y, rows_, c_.layer_input_size);
  }
  void GateMul(Rows gate_up, std::int64_t rows, std::int64_t width, Rows y) {
    CpuOps::GateMul(gate_up, rows, width, y);
    Round(y, rows, width);
  }

 private:
  void Round(Rows x, std::int64_t rows, std::int64_t width) const {
    std::byte rounded[4];
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < width; ++i) {
        float& value = x.data[row * x.stride + i];
        StoreFromF32(dtype_, rounded, 0, value);
        value = LoadAsF32(dtype_, rounded, 0);
      }
    }
  }

  const ModelConfig& c_;
  const DType dtype_;
  std::int64_t rows_ = 0;
};

}  // namespace loramux::device_model_test
