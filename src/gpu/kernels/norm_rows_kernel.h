// The norms of rows (elementwise.h).
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/elementwise.h"
#include "gpu/kernels/elementwise_kernels.h"
#include "gpu/kernels/own_norm.h"

namespace loramux::gpu {

// One block a row. Threads keep what they read: kKept groups each, and read the rest of wider rows again.
template <typename T>
struct NormRowsKernel {
  using Arguments = NormRowsArguments;
  static constexpr int kThreads = 256, kMinBlocks = 1;
  static constexpr int kKept = 4;
  struct Memory {
    float sums[kThreads / 32];
  };

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    const std::int64_t row = BlockX();
    if (static_cast<std::int32_t>(row) < Load(a.rows)) Row(a, row);
  }

  // One row, by all threads of the block.
  LORAMUX_DEVICE static void Row(const Arguments& a, std::int64_t row) {
    const std::int64_t step = BlockThreads() * kGroup, first = ThreadIndex() * kGroup;
    const float* weights = NormWeights(a.own, row, a.weight);
    float kept[kKept][kGroup], sum = 0;
    LORAMUX_UNROLL
    for (int i = 0; i < kKept; ++i) {
      if (first + i * step < a.width) sum = LoadAndAdd(a, row, first + i * step, kept[i], sum);
    }
    for (std::int64_t column = first + kKept * step; column < a.width; column += step) {
      float values[kGroup];
      sum = LoadAndAdd(a, row, column, values, sum);
    }
    float mean = 0;
    if (a.bias != nullptr) {
      mean = SumBlock(sum) / static_cast<float>(a.width);
      sum = 0;
      LORAMUX_UNROLL
      for (int i = 0; i < kKept; ++i) {
        if (first + i * step < a.width) sum = AddSquares(kept[i], mean, first + i * step, a.width, sum);
      }
      for (std::int64_t column = first + kKept * step; column < a.width; column += step) {
        float values[kGroup];
        LoadGroup<float>({a.x, a.x_stride}, row, column, a.width, values);
        sum = AddSquares(values, mean, column, a.width, sum);
      }
      SyncBlock();  // the sums of the mean have been read
    }
    const float scale = ReciprocalSqrt(SumBlock(sum) / static_cast<float>(a.width) + a.eps);
    LORAMUX_UNROLL
    for (int i = 0; i < kKept; ++i) {
      if (first + i * step < a.width) StoreScaled(a, weights, row, first + i * step, kept[i], mean, scale);
    }
    for (std::int64_t column = first + kKept * step; column < a.width; column += step) {
      float values[kGroup];
      LoadGroup<float>({a.x, a.x_stride}, row, column, a.width, values);
      StoreScaled(a, weights, row, column, values, mean, scale);
    }
  }

  // The sum over all threads of the block; with several warps, in Memory.
  LORAMUX_DEVICE static float SumBlock(float sum) {
    sum = SumWarp(sum);
    if (BlockThreads() == 32) return sum;
    Memory& shared = Shared<Memory>();
    if (Lane() == 0) shared.sums[Warp()] = sum;
    SyncBlock();
    sum = 0;
    for (std::uint32_t warp = 0; warp < BlockThreads() / 32; ++warp) sum += shared.sums[warp];
    return sum;
  }

 private:
  LORAMUX_DEVICE static float AddSquares(const float (&values)[kGroup], float mean, std::int64_t column,
                                         std::int64_t width, float sum) {
    LORAMUX_UNROLL
    for (int i = 0; i < kGroup; ++i) {
      const float centered = column + i < width ? values[i] - mean : 0.0f;
      sum = Fma(centered, centered, sum);
    }
    return sum;
  }
  // Reads a group of x, adds `added`, and returns `sum` with its squares, or with itself for a LayerNorm.
  LORAMUX_DEVICE static float LoadAndAdd(const Arguments& a, std::int64_t row, std::int64_t column,
                                         float (&values)[kGroup], float sum) {
    LoadGroup<float>({a.x, a.x_stride}, row, column, a.width, values);
    if (a.added != nullptr) {
      float added[kGroup];
      LoadGroup<float>({a.added, a.added_stride}, row, column, a.width, added);
      LORAMUX_UNROLL
      for (int i = 0; i < kGroup; ++i) values[i] = Fma(added[i], a.added_scale, values[i]);
      StoreGroup<float>({a.x, a.x_stride}, row, column, a.width, values);
    }
    const bool centers = a.bias != nullptr;
    LORAMUX_UNROLL
    for (int i = 0; i < kGroup; ++i) sum = centers ? sum + values[i] : Fma(values[i], values[i], sum);
    return sum;
  }
  LORAMUX_DEVICE static void StoreScaled(const Arguments& a, const float* weights, std::int64_t row,
                                         std::int64_t column, float (&values)[kGroup], float mean, float scale) {
    if (a.bias != nullptr) {
      float weight[kGroup], bias[kGroup];
      LoadGroup<float>({weights, 0}, 0, column, a.width, weight);
      LoadGroup<float>({a.bias, 0}, 0, column, a.width, bias);
      LORAMUX_UNROLL
      for (int i = 0; i < kGroup; ++i) values[i] = Fma((values[i] - mean) * scale, weight[i], bias[i]);
    } else if (weights != nullptr) {
      float weight[kGroup];
      LoadGroup<float>({weights, 0}, 0, column, a.width, weight);
      LORAMUX_UNROLL
      for (int i = 0; i < kGroup; ++i) values[i] = values[i] * scale * (weight[i] + a.weight_offset);
    }
    StoreGroup<T>({static_cast<T*>(a.y), a.y_stride}, row, column, a.width, values);
  }
};

}  // namespace loramux::gpu
