// The convolution and the gates of states.h.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/elementwise_kernels.h"
#include "gpu/kernels/norm_rows_kernel.h"
#include "gpu/kernels/state_heads_kernel.h"
#include "gpu/kernels/states.h"

namespace loramux::gpu {

// Block (rows, channels): kRows rows of the batch, and kThreads channels, one for each thread. The first rows of a
// sequence, which see its state, belong to the block of the very first, so that one thread reads and writes a channel's
// state.
template <typename T>
struct CausalConvKernel {
  using Arguments = CausalConvOnDevice;
  static constexpr int kThreads = 128, kMinBlocks = 4;
  static constexpr std::int32_t kRows = 8;

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    const auto channel = static_cast<std::int32_t>(BlockY() * kThreads + ThreadIndex());
    if (channel >= a.channels) return;
    const std::int32_t rows = Load(a.rows), begin = static_cast<std::int32_t>(BlockX()) * kRows;
    const std::int32_t end = begin + kRows < rows ? begin + kRows : rows;
    const std::int32_t last = end + a.width - 2 < rows ? end + a.width - 2 : rows;
    Channel of(a, channel);
    for (std::int32_t row = begin; row < last; ++row) {
      const SequenceOnDevice sequence = Load(a.states.sequences + Load(a.row_sequence + row));
      const std::int32_t offset = row - sequence.first_row;
      const std::int32_t owner = offset < a.width - 1 ? sequence.first_row : row;
      if (owner >= begin && owner < end) of.Row(sequence, row, offset);
    }
  }

 private:
  // One channel: its weights, and what the convolution sees of it. Both stand at the end of the arrays.
  struct Channel {
    const Arguments& a;
    const std::int32_t channel;
    float weights[kMaxConvWidth], seen[kMaxConvWidth];
    std::int32_t next = -1;  // the row whose turn it is, with `seen` as it stands

    LORAMUX_DEVICE Channel(const Arguments& arguments, std::int32_t which) : a(arguments), channel(which) {
      LORAMUX_UNROLL
      for (int i = 0; i < kMaxConvWidth; ++i) {
        const int j = i - (kMaxConvWidth - a.width);
        weights[i] = j >= 0 ? Load(a.weights + j * a.channels + channel) : 0.0f;
        seen[i] = 0.0f;
      }
    }

    LORAMUX_DEVICE float X(std::int32_t row) const { return Load(a.x + row * a.x_stride + channel); }
    LORAMUX_DEVICE float* State(const SequenceOnDevice& sequence, std::int32_t j) const {
      return StateAddress(a.states, sequence.first_page, j * static_cast<std::int32_t>(a.channels) + channel);
    }
    // Which of the width - 1 rows before a row seen[i] is when its turn comes, from the earliest on; below 0: none.
    LORAMUX_DEVICE int Before(int i) const { return i - 1 - (kMaxConvWidth - a.width); }

    // What stands before the row: earlier rows of the sequence, or at its begin the state.
    LORAMUX_DEVICE void See(const SequenceOnDevice& sequence, std::int32_t row, std::int32_t offset) {
      const bool begins = offset == 0 && sequence.position == 0;
      LORAMUX_UNROLL
      for (int i = 1; i < kMaxConvWidth; ++i) {
        const int j = Before(i);
        if (j < 0 || begins) {
          seen[i] = 0.0f;
        } else {
          seen[i] = offset == 0 ? Load(State(sequence, j)) : X(row - (a.width - 1) + j);
        }
      }
    }

    LORAMUX_DEVICE void Row(const SequenceOnDevice& sequence, std::int32_t row, std::int32_t offset) {
      if (row != next || offset == 0) See(sequence, row, offset);
      float sum = a.bias == nullptr ? 0.0f : Load(a.bias + channel);
      LORAMUX_UNROLL
      for (int i = 0; i + 1 < kMaxConvWidth; ++i) {
        seen[i] = seen[i + 1];
        sum = Fma(weights[i], seen[i], sum);
      }
      seen[kMaxConvWidth - 1] = X(row);
      sum = Fma(weights[kMaxConvWidth - 1], seen[kMaxConvWidth - 1], sum);
      Store(a.y + row * a.y_stride + channel, sum * Sigmoid(sum));
      next = row + 1;
      const std::int32_t reading = sequence.rows < a.width - 1 ? sequence.rows : a.width - 1;
      if (offset == reading - 1) StoreState(sequence);
    }

    // The last rows of the sequence. If it has few, they are what is seen.
    LORAMUX_DEVICE void StoreState(const SequenceOnDevice& sequence) const {
      const std::int32_t end = sequence.first_row + sequence.rows;
      LORAMUX_UNROLL
      for (int i = 1; i < kMaxConvWidth; ++i) {
        const int j = Before(i);
        if (j >= 0) Store(State(sequence, j), sequence.rows < a.width ? seen[i] : X(end - (a.width - 1) + j));
      }
    }
  };
};

// Block (row, head).
template <typename T>
struct GatedNormKernel {
  using Arguments = GatedNormOnDevice;
  static constexpr int kThreads = NormRowsKernel<float>::kThreads, kMinBlocks = 4;

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    const std::int64_t row = BlockX();
    if (static_cast<std::int32_t>(row) >= Load(a.rows)) return;
    const std::int64_t first = static_cast<std::int64_t>(BlockY()) * a.head_dim;
    const float* const x = a.x + row * a.x_stride + first;
    const float* const z = a.z + row * a.z_stride + first;
    const float* const weight = a.weight + BlockY() * a.weight_stride;
    T* const y = static_cast<T*>(a.y) + row * a.y_stride + first;
    const auto begin = static_cast<std::int32_t>(ThreadIndex()), step = static_cast<std::int32_t>(BlockThreads());
    float squares = 0;
    for (std::int32_t i = begin; i < a.head_dim; i += step) {
      const float value = a.gate_first ? Load(x + i) * Silu(Load(z + i)) : Load(x + i);
      squares = Fma(value, value, squares);
    }
    const float mean = NormRowsKernel<float>::SumBlock(squares) / static_cast<float>(a.head_dim);
    const float scale = ReciprocalSqrt(mean + a.eps);
    for (std::int32_t i = begin; i < a.head_dim; i += step) {
      Store(y + i, FromFloat<T>(Load(x + i) * Silu(Load(z + i)) * scale * Load(weight + i)));
    }
  }

 private:
  LORAMUX_DEVICE static float Silu(float x) { return x * Sigmoid(x); }
};

template <typename T>
struct MulSigmoidKernel {
  using Arguments = MulSigmoidOnDevice;
  static constexpr int kThreads = kPartThreads, kMinBlocks = 1;

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    if (IsBeyond(a.rows, a.width)) return;
    const std::int64_t row = BlockX(), column = ColumnOfThread();
    float values[kGroup], gates[kGroup];
    LoadGroup<float>({a.x, a.x_stride}, row, column, a.width, values);
    LoadGates(a, row, static_cast<std::int32_t>(column), gates);
    LORAMUX_UNROLL
    for (int i = 0; i < kGroup; ++i) values[i] *= Sigmoid(gates[i]);
    StoreGroup<T>({static_cast<T*>(a.y), a.y_stride}, row, column, a.width, values);
  }

 private:
  LORAMUX_DEVICE static void LoadGates(const Arguments& a, std::int64_t row, std::int32_t column,
                                       float (&gates)[kGroup]) {
    if (a.head_dim % kGroup == 0) {
      const std::int32_t head = column / a.head_dim;
      LoadGroup<float>({a.gate + head * a.gate_head_stride, a.gate_stride}, row, column - head * a.head_dim, a.head_dim,
                       gates);
      return;
    }
    LORAMUX_UNROLL
    for (int i = 0; i < kGroup; ++i) {
      const std::int32_t head = (column + i) / a.head_dim, at = head * a.gate_head_stride + (column + i) % a.head_dim;
      gates[i] = column + i < a.width ? Load(a.gate + row * a.gate_stride + at) : 0.0f;
    }
  }
};

}  // namespace loramux::gpu
