// The two products of attention over a tile of positions, for the 16 rows of one warp. Fragments are those of m16n8k16
// for all types: lane 4 g + t holds columns 2 t and 2 t + 1 of rows g and g + 8 of each 16 x 8 tile, at [0], [1] and
// [2], [3].
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/attention_extents.h"

namespace loramux::gpu {

// The softmax's numerators of a tile, for the rows of one warp. Tensor cores take them from registers; f32 passes them
// through shared memory.
template <typename T, int kTile>
struct TileWeights {};
template <int kTile>
struct TileWeights<float, kTile> {
  float row[kAttentionWarpRows][kTile + 4];
};

// The products of a tile. scores: [16 rows][kTile positions]; sums over d ascending.
template <typename T, int kDim>
struct AttentionProducts {
  using Extents = ExtentsOf<T, kDim>;
  static constexpr int kTile = Extents::kTile;

  LORAMUX_DEVICE static void Scores(const T (*queries)[Extents::kStride], const T (*keys)[Extents::kStride],
                                    float (&scores)[kTile / 8][4]) {
    const int lane = static_cast<int>(Lane());
    LORAMUX_UNROLL
    for (int k = 0; k < kDim; k += 16) {
      std::uint32_t a[4];
      LoadMatrices(a, &queries[lane % 16][k + lane / 16 * 8]);
      LORAMUX_UNROLL
      for (int n = 0; n < kTile; n += 16) {
        std::uint32_t b[4];
        LoadMatrices(b, &keys[n + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
        MultiplyTile<T>(scores[n / 8], a[0], a[1], a[2], a[3], b[0], b[1]);
        MultiplyTile<T>(scores[n / 8 + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }

  // Nothing to keep: the weights' fragments of the scores are those that AddValues multiplies.
  LORAMUX_DEVICE static void KeepWeights(TileWeights<T, kTile>&, const float (&)[kTile / 8][4]) {}

  LORAMUX_DEVICE static void AddValues(const TileWeights<T, kTile>&, const float (&weights)[kTile / 8][4],
                                       const T (*values)[Extents::kStride], float (&sums)[kDim / 8][4]) {
    const int lane = static_cast<int>(Lane());
    LORAMUX_UNROLL
    for (int k = 0; k < kTile; k += 16) {
      const float(&low)[4] = weights[k / 8];
      const float(&high)[4] = weights[k / 8 + 1];
      const std::uint32_t a[4] = {Pack<T>(low[0], low[1]), Pack<T>(low[2], low[3]), Pack<T>(high[0], high[1]),
                                  Pack<T>(high[2], high[3])};
      LORAMUX_UNROLL
      for (int n = 0; n < kDim; n += 16) {
        std::uint32_t b[4];
        LoadMatricesTransposed(b, &values[k + lane % 16][n + lane / 16 * 8]);
        MultiplyTile<T>(sums[n / 8], a[0], a[1], a[2], a[3], b[0], b[1]);
        MultiplyTile<T>(sums[n / 8 + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }
};

// The same fragments without tensor cores.
template <int kDim>
struct AttentionProducts<float, kDim> {
  using Extents = ExtentsOf<float, kDim>;
  static constexpr int kTile = Extents::kTile;
  struct alignas(16) Four {
    float x[4];
  };

  LORAMUX_DEVICE static void Scores(const float (*queries)[Extents::kStride], const float (*keys)[Extents::kStride],
                                    float (&scores)[kTile / 8][4]) {
    const int g = static_cast<int>(Lane()) / 4, t = static_cast<int>(Lane()) % 4;
    for (int d = 0; d < kDim; d += 4) {
      const Four top = *reinterpret_cast<const Four*>(&queries[g][d]);
      const Four low = *reinterpret_cast<const Four*>(&queries[g + 8][d]);
      LORAMUX_UNROLL
      for (int n = 0; n < kTile / 8; ++n) {
        LORAMUX_UNROLL
        for (int c = 0; c < 2; ++c) {
          const Four key = *reinterpret_cast<const Four*>(&keys[n * 8 + 2 * t + c][d]);
          LORAMUX_UNROLL
          for (int i = 0; i < 4; ++i) {
            scores[n][c] = Fma(top.x[i], key.x[i], scores[n][c]);
            scores[n][2 + c] = Fma(low.x[i], key.x[i], scores[n][2 + c]);
          }
        }
      }
    }
  }

  LORAMUX_DEVICE static void KeepWeights(TileWeights<float, kTile>& kept, const float (&weights)[kTile / 8][4]) {
    const int g = static_cast<int>(Lane()) / 4, t = static_cast<int>(Lane()) % 4;
    LORAMUX_UNROLL
    for (int n = 0; n < kTile / 8; ++n) {
      LORAMUX_UNROLL
      for (int c = 0; c < 2; ++c) {
        kept.row[g][n * 8 + 2 * t + c] = weights[n][c];
        kept.row[g + 8][n * 8 + 2 * t + c] = weights[n][2 + c];
      }
    }
  }

  LORAMUX_DEVICE static void AddValues(const TileWeights<float, kTile>& kept, const float (&)[kTile / 8][4],
                                       const float (*values)[Extents::kStride], float (&sums)[kDim / 8][4]) {
    const int g = static_cast<int>(Lane()) / 4, t = static_cast<int>(Lane()) % 4;
    for (int p = 0; p < kTile; ++p) {
      const float top = kept.row[g][p], low = kept.row[g + 8][p];
      LORAMUX_UNROLL
      for (int n = 0; n < kDim / 8; ++n) {
        LORAMUX_UNROLL
        for (int c = 0; c < 2; ++c) {
          const float value = values[p][n * 8 + 2 * t + c];
          sums[n][c] = Fma(top, value, sums[n][c]);
          sums[n][2 + c] = Fma(low, value, sums[n][2 + c]);
        }
      }
    }
  }
};

}  // namespace loramux::gpu
