#include "kernels/states.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace loramux::reference {
namespace {

float SigmoidOf(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// As torch.nn.functional.softplus.
float Softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// y = x times `scale` over its length.
void Normalise(const float* x, std::int64_t n, float scale, float* y) {
  float squares = 0;
  for (std::int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
  const float inverse = 1.0f / std::sqrt(squares + 1e-6f);
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * inverse * scale;
}

}  // namespace

void CausalConv(const KernelContext&, const CausalConvArguments& a) {
  const std::int64_t before = a.width - 1, channels = a.channels;
  for (const StateSequence& sequence : a.sequences) {
    const std::int64_t rows = sequence.num_tokens;
    std::vector<float> all(static_cast<std::size_t>((before + rows) * channels));  // the state, then the rows
    a.place.Read(sequence, 0, before * channels, all.data());
    for (std::int64_t t = 0; t < rows; ++t) {
      std::copy_n(a.x[sequence.first_row + t], channels, all.data() + (before + t) * channels);
    }
    for (std::int64_t t = 0; t < rows; ++t) {
      for (std::int64_t c = 0; c < channels; ++c) {
        float sum = a.bias == nullptr ? 0 : a.bias[c];
        for (std::int64_t j = 0; j < a.width; ++j) {
          sum += a.weights[j * channels + c] * all[static_cast<std::size_t>((t + j) * channels + c)];
        }
        a.y[sequence.first_row + t][c] = sum * SigmoidOf(sum);
      }
    }
    a.place.Write(sequence, 0, before * channels, all.data() + rows * channels);
  }
}

void DeltaRule(const KernelContext&, const DeltaRuleArguments& call) {
  const DeltaShape& shape = call.shape;
  const std::int64_t dk = shape.key_dim, dv = shape.value_dim;
  float *const state = call.workspace, *const q = state + dk * dv, *const k = q + dk, *const change = k + dk;
  for (const StateSequence& sequence : call.sequences) {
    for (std::int64_t head = 0; head < shape.value_heads; ++head) {
      call.place.Read(sequence, head * dk * dv, dk * dv, state);
      for (std::int64_t row = sequence.first_row; row < sequence.first_row + sequence.num_tokens; ++row) {
        const float* const of_row = call.x[row];
        const std::int64_t key_head = head / (shape.value_heads / shape.key_heads);
        Normalise(of_row + key_head * dk, dk, 1.0f / std::sqrt(static_cast<float>(dk)), q);
        Normalise(of_row + shape.Keys() + key_head * dk, dk, 1.0f, k);
        const float* const v = of_row + 2 * shape.Keys() + head * dv;
        const float beta = SigmoidOf(call.gates[row][head]);
        const float a = call.gates[row][shape.value_heads + head] + call.bias[head];
        const float decay = std::exp(call.rate[head] * Softplus(a));
        for (std::int64_t i = 0; i < dk * dv; ++i) state[i] *= decay;
        for (std::int64_t j = 0; j < dv; ++j) {
          float known = 0;
          for (std::int64_t i = 0; i < dk; ++i) known += state[i * dv + j] * k[i];
          change[j] = (v[j] - known) * beta;
        }
        for (std::int64_t j = 0; j < dv; ++j) {
          float sum = 0;
          for (std::int64_t i = 0; i < dk; ++i) {
            state[i * dv + j] += k[i] * change[j];
            sum += state[i * dv + j] * q[i];
          }
          call.out[row][head * dv + j] = sum;
        }
      }
      call.place.Write(sequence, head * dk * dv, dk * dv, state);
    }
  }
}

void SelectiveScan(const KernelContext&, const SelectiveScanArguments& call) {
  const DeltaShape& shape = call.shape;
  const std::int64_t dk = shape.key_dim, dv = shape.value_dim;
  float* const state = call.workspace;
  for (const StateSequence& sequence : call.sequences) {
    for (std::int64_t head = 0; head < shape.value_heads; ++head) {
      const std::int64_t key_head = head / (shape.value_heads / shape.key_heads);
      call.place.Read(sequence, head * dk * dv, dk * dv, state);
      for (std::int64_t row = sequence.first_row; row < sequence.first_row + sequence.num_tokens; ++row) {
        const float* const v = call.x[row] + head * dv;
        const float* const k = call.x[row] + shape.Values() + key_head * dk;
        const float* const q = k + shape.Keys();
        const float plain = Softplus(call.steps[row][head] + call.bias[head]);
        const float step = std::min(std::max(plain, call.least_step), call.most_step);
        const float decay = std::exp(call.rate[head] * step);
        for (std::int64_t j = 0; j < dv; ++j) {
          float sum = 0;
          for (std::int64_t i = 0; i < dk; ++i) {
            state[i * dv + j] = state[i * dv + j] * decay + k[i] * (step * v[j]);
            sum += state[i * dv + j] * q[i];
          }
          call.out[row][head * dv + j] = sum + call.skip[head] * v[j];
        }
      }
      call.place.Write(sequence, head * dk * dv, dk * dv, state);
    }
  }
}

void GatedRmsNorm(const KernelContext&, const GatedRmsNormArguments& a) {
  for (std::int64_t i = 0; i < a.rows * a.heads; ++i) {
    float* const head = a.y[i / a.heads] + i % a.heads * a.head_dim;
    const float* const gate = a.z[i / a.heads] + i % a.heads * a.head_dim;
    const float* const weight = a.weight + i % a.heads * a.weight_stride;
    float squares = 0;
    for (std::int64_t t = 0; a.gate_first && t < a.head_dim; ++t) head[t] *= gate[t] * SigmoidOf(gate[t]);
    for (std::int64_t t = 0; t < a.head_dim; ++t) squares += head[t] * head[t];
    const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(a.head_dim) + a.eps);
    for (std::int64_t t = 0; t < a.head_dim; ++t) {
      head[t] = head[t] * inverse * weight[t];
      if (!a.gate_first) head[t] *= gate[t] * SigmoidOf(gate[t]);
    }
  }
}

void MulSigmoid(const KernelContext&, const MulSigmoidArguments& a) {
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t t = 0; t < a.width; ++t) a.y[i][t] *= SigmoidOf(a.gate[i][t]);
  }
}

}  // namespace loramux::reference
