#include "kernels/reference/states.h"

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

void CausalConv(const KernelContext&, std::int64_t channels, std::int64_t width, const float* weights,
                const StatePlace& place, std::span<const StateSequence> sequences, const float* x,
                std::int64_t x_stride, float* y, std::int64_t y_stride) {
  for (const StateSequence& sequence : sequences) {
    const std::int64_t before = width - 1, rows = sequence.num_tokens;
    std::vector<float> all(static_cast<std::size_t>((before + rows) * channels));  // the state, then the rows
    place.Read(sequence, 0, before * channels, all.data());
    for (std::int64_t t = 0; t < rows; ++t) {
      std::copy_n(x + (sequence.first_row + t) * x_stride, channels, all.data() + (before + t) * channels);
    }
    for (std::int64_t t = 0; t < rows; ++t) {
      for (std::int64_t c = 0; c < channels; ++c) {
        float sum = 0;
        for (std::int64_t j = 0; j < width; ++j) {
          sum += weights[j * channels + c] * all[static_cast<std::size_t>((t + j) * channels + c)];
        }
        y[(sequence.first_row + t) * y_stride + c] = sum * SigmoidOf(sum);
      }
    }
    place.Write(sequence, 0, before * channels, all.data() + rows * channels);
  }
}

void DeltaRule(const KernelContext&, const DeltaShape& shape, const DeltaGates& form, const StatePlace& place,
               std::span<const StateSequence> sequences, const float* x, std::int64_t x_stride, const float* gates,
               std::int64_t gates_stride, float* out, std::int64_t out_stride, float* workspace) {
  const std::int64_t dk = shape.key_dim, dv = shape.value_dim;
  float *const state = workspace, *const q = state + dk * dv, *const k = q + dk, *const change = k + dk;
  for (const StateSequence& sequence : sequences) {
    for (std::int64_t head = 0; head < shape.value_heads; ++head) {
      place.Read(sequence, head * dk * dv, dk * dv, state);
      for (std::int64_t row = sequence.first_row; row < sequence.first_row + sequence.num_tokens; ++row) {
        const float* const of_row = x + row * x_stride;
        const std::int64_t key_head = head / (shape.value_heads / shape.key_heads);
        Normalise(of_row + key_head * dk, dk, 1.0f / std::sqrt(static_cast<float>(dk)), q);
        Normalise(of_row + shape.Keys() + key_head * dk, dk, 1.0f, k);
        const float* const v = of_row + 2 * shape.Keys() + head * dv;
        const float beta = SigmoidOf(gates[row * gates_stride + head]);
        const float a = gates[row * gates_stride + shape.value_heads + head] + form.bias[head];
        const float decay = std::exp(form.rate[head] * Softplus(a));
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
          out[row * out_stride + head * dv + j] = sum;
        }
      }
      place.Write(sequence, head * dk * dv, dk * dv, state);
    }
  }
}

void GatedRmsNorm(const KernelContext&, std::int64_t heads, std::int64_t dim, const float* weight, float eps,
                  const float* z, std::int64_t z_stride, std::int64_t m, float* y, std::int64_t y_stride) {
  for (std::int64_t i = 0; i < m * heads; ++i) {
    float* const head = y + i / heads * y_stride + i % heads * dim;
    const float* const gate = z + i / heads * z_stride + i % heads * dim;
    float squares = 0;
    for (std::int64_t t = 0; t < dim; ++t) squares += head[t] * head[t];
    const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(dim) + eps);
    for (std::int64_t t = 0; t < dim; ++t) head[t] = head[t] * inverse * weight[t] * (gate[t] * SigmoidOf(gate[t]));
  }
}

void MulSigmoid(const KernelContext&, const float* gate, std::int64_t gate_stride, std::int64_t m, std::int64_t n,
                float* y, std::int64_t y_stride) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t t = 0; t < n; ++t) y[i * y_stride + t] *= SigmoidOf(gate[i * gate_stride + t]);
  }
}

}  // namespace loramux::reference
