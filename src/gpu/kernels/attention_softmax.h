// The softmax of attention: over tiles of a chunk, over chunks, and what is stored in the end. The fragments of a lane
// are those of attention_products.h.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/attention.h"
#include "gpu/kernels/attention_pages.h"
#include "gpu/kernels/tanh.h"

namespace loramux::gpu {

inline constexpr float kMinusInfinity = -__builtin_inff();

// How a product of q and k becomes a score. It is first tanh(inner * product), if `inner` is above 0. What it is then
// multiplied by, so that its power of 2 is the softmax's numerator, is `outer`.
struct ScoreScale {
  float outer, inner;
  const float* slopes;  // ScoreForm::slopes
  bool rounds_bias;
};
LORAMUX_DEVICE ScoreScale ScaleOf(const AttentionArguments& arguments) {
  constexpr float kLog2E = 1.44269504f;
  const float scale =
      arguments.form.scale > 0 ? arguments.form.scale : ReciprocalSqrt(static_cast<float>(arguments.pages.head_dim));
  const bool capped = arguments.form.soft_cap > 0;
  return {kLog2E * (capped ? arguments.form.soft_cap : scale), capped ? scale / arguments.form.soft_cap : 0,
          arguments.form.slopes, arguments.form.rounds_bias};
}

// What ALiBi adds to the product of a row's query, which is at `own`, with the key at `position`.
LORAMUX_DEVICE float BiasOf(const ScoreScale& scales, float slope, std::int32_t position, std::int32_t own) {
  if (!scales.rounds_bias) return slope * static_cast<float>(position - own);
  return ToFloat(FromFloat<Bf16>(slope * ToFloat(FromFloat<Bf16>(static_cast<float>(position)))));
}

// The softmax's sum, with the head's sink if there is one. `maximum`: of the scores times ScoreScale::outer.
LORAMUX_DEVICE float WithSink(const AttentionArguments& arguments, std::int32_t head, float maximum, float sum) {
  constexpr float kLog2E = 1.44269504f;
  if (arguments.form.sinks == nullptr) return sum;
  return sum + Exp2(Fma(Load(arguments.form.sinks + head), kLog2E, -maximum));
}

// An online softmax over some positions, of the rows g and g + 8 of a lane: values are not yet divided by the sum.
template <int kDim>
struct SoftmaxState {
  float values[kDim / 8][4];
  float maximum[2];  // largest score times ScoreScale::outer; -inf: no position so far
  float sum[2];

  LORAMUX_DEVICE void Clear() {
    LORAMUX_UNROLL
    for (int n = 0; n < kDim / 8; ++n) values[n][0] = values[n][1] = values[n][2] = values[n][3] = 0;
    maximum[0] = maximum[1] = kMinusInfinity;
    sum[0] = sum[1] = 0;
  }
  // Sums over the lanes of a row. To be called once, at the end of a chunk.
  LORAMUX_DEVICE void SumLanes() {
    LORAMUX_UNROLL
    for (int i = 0; i < 2; ++i) {
      sum[i] += ShuffleXor(sum[i], 1);
      sum[i] += ShuffleXor(sum[i], 2);
    }
  }
};

// How two softmaxes over adjacent ranges become one. All products are explicit, so that both kernels round alike.
struct SoftmaxMerge {
  float before, after;  // factors of the sums and values of the two

  // Merges maximum and sum of the later range into those of the earlier.
  LORAMUX_DEVICE SoftmaxMerge(float& maximum, float& sum, float later_maximum, float later_sum) {
    const float merged = Max(maximum, later_maximum);
    const float reference = merged == kMinusInfinity ? 0.0f : merged;
    before = Exp2(maximum - reference);
    after = Exp2(later_maximum - reference);
    maximum = merged;
    sum = Fma(sum, before, later_sum * after);
  }
  LORAMUX_DEVICE float operator()(float value, float later_value) const {
    return Fma(value, before, later_value * after);
  }
};

// A result. The addition turns a value of -0 into +0, as tiles that a row does not see may have done before.
LORAMUX_DEVICE float Normalised(float value, float inverse_sum) { return Fma(value, inverse_sum, 0.0f); }

// Stores two neighbouring elements.
LORAMUX_DEVICE void StorePairAs(DType dtype, void* base, std::int64_t index, float low, float high) {
  if (dtype == DType::kF32) {
    Store(reinterpret_cast<Pair*>(static_cast<float*>(base) + index), Pair{low, high});
  } else {
    const std::uint32_t pair = dtype == DType::kBF16 ? Pack<Bf16>(low, high) : Pack<Half>(low, high);
    Store(reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(base) + index), pair);
  }
}

// Divides and stores one row of a state, the i-th of the lane's two.
template <int kDim>
LORAMUX_DEVICE void StoreResult(const AttentionArguments& arguments, const QueryRow& row, int i,
                                const SoftmaxState<kDim>& state) {
  const std::int32_t head_dim = arguments.pages.head_dim;
  const std::int64_t at = NoEarlier(row.row * arguments.out_stride + row.head * head_dim);
  const float inverse = NoEarlier(1.0f / WithSink(arguments, row.head, state.maximum[i], state.sum[i]));
  LORAMUX_UNROLL
  for (int n = 0; n < kDim / 8; ++n) {
    const int d = n * 8 + static_cast<int>(Lane()) % 4 * 2;
    if (d < head_dim) {
      StorePairAs(arguments.out_dtype, arguments.out, at + d, Normalised(state.values[n][2 * i], inverse),
                  Normalised(state.values[n][2 * i + 1], inverse));
    }
  }
}

// Turns a tile's scores into weights relative to the running maximum, and brings the state up to it.
template <int kTile, int kDim>
LORAMUX_DEVICE void AddScores(float (&scores)[kTile / 8][4], const QueryRow (&rows)[2], std::int32_t tile,
                              const ScoreScale& scales, SoftmaxState<kDim>& state) {
  const float scale = scales.outer;
  LORAMUX_UNROLL
  for (int i = 0; i < 2; ++i) {
    float maximum = kMinusInfinity;
    const bool biased = scales.slopes != nullptr && rows[i].last >= 0;
    const float slope = biased ? Load(scales.slopes + rows[i].head) : 0.0f;
    LORAMUX_UNROLL
    for (int n = 0; n < kTile / 8; ++n) {
      LORAMUX_UNROLL
      for (int c = 0; c < 2; ++c) {
        const std::int32_t position = tile + n * 8 + static_cast<int>(Lane()) % 4 * 2 + c;
        float& score = scores[n][2 * i + c];
        if (biased) score = AddRounded(score, BiasOf(scales, slope, position, rows[i].last));
        if (scales.inner > 0) score = Tanh(scales.inner * score);
        if (position < rows[i].first || position > rows[i].last) score = kMinusInfinity;
        maximum = Max(maximum, score);
      }
    }
    maximum = Max(maximum, ShuffleXor(maximum, 1));
    maximum = Max(maximum, ShuffleXor(maximum, 2));
    const float merged = Max(state.maximum[i], maximum * scale);
    const float reference = merged == kMinusInfinity ? 0.0f : merged;
    const float before = Exp2(state.maximum[i] - reference);
    state.maximum[i] = merged;
    float sum = 0;
    LORAMUX_UNROLL
    for (int n = 0; n < kTile / 8; ++n) {
      LORAMUX_UNROLL
      for (int c = 0; c < 2; ++c) {
        float& score = scores[n][2 * i + c];
        score = Exp2(Fma(score, scale, -reference));
        sum += score;
      }
    }
    state.sum[i] = Fma(state.sum[i], before, sum);
    LORAMUX_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      state.values[n][2 * i] *= before;
      state.values[n][2 * i + 1] *= before;
    }
  }
}

}  // namespace loramux::gpu
