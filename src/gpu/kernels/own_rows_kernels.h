// The kernels of own_rows.h.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/elementwise_kernels.h"
#include "gpu/kernels/lora_loads.h"
#include "gpu/kernels/own_rows.h"

namespace loramux::gpu {

// Element `index` of a row of a type known at run time.
LORAMUX_DEVICE float LoadOwnElement(DType dtype, const void* row, std::int64_t index) {
  if (dtype == DType::kF32) return Load(static_cast<const float*>(row) + index);
  if (dtype == DType::kBF16) return ToFloat(Load(static_cast<const Bf16*>(row) + index));
  if (dtype == DType::kF16) return ToFloat(Load(static_cast<const Half*>(row) + index));
  if (dtype == DType::kF8E4M3) return LoraToFloat(Load(static_cast<const Float8*>(row) + index));
  return static_cast<float>(Load(static_cast<const std::int8_t*>(row) + index));
}

// values = 8 elements of a row of a type known at run time, as LoadGroup.
LORAMUX_DEVICE void LoadOwnGroup(DType dtype, const void* row, std::int64_t column, std::int64_t width,
                                 float (&values)[kGroup]) {
  if (dtype == DType::kF32) {
    LoadGroup<float>({static_cast<const float*>(row), 0}, 0, column, width, values);
  } else if (dtype == DType::kBF16) {
    LoadGroup<Bf16>({static_cast<const Bf16*>(row), 0}, 0, column, width, values);
  } else {
    LoadGroup<Half>({static_cast<const Half*>(row), 0}, 0, column, width, values);
  }
}

template <typename T>
struct EmbedOwnRowsKernel {
  using Arguments = EmbedOwnRowsArguments;
  static constexpr int kThreads = kPartThreads, kMinBlocks = 1;
  LORAMUX_DEVICE static void Run(const Arguments& a) {
    if (IsBeyond(a.rows, a.width)) return;
    const std::int64_t row = BlockX(), column = ColumnOfThread();
    const OwnPartsOnDevice* own = Load(a.own + row);
    if (own == nullptr) return;
    const std::int32_t token = Load(a.tokens + row);
    const void* from = Find(own->embedding, token);
    const bool has_lora = token < Load(&own->embedding_lora.tokens);
    if (from == nullptr && !has_lora) return;
    float values[kGroup];
    if (from == nullptr) {
      LoadGroup<float>({a.hidden, a.hidden_stride}, row, column, a.width, values);
    } else {
      LoadOwnGroup(Load(&own->dtype), from, column, a.width, values);
    }
    if (has_lora) AddLora(own->embedding_lora, token, column, a.width, values);
    StoreGroup<float>({a.hidden, a.hidden_stride}, row, column, a.width, values);
  }

 private:
  LORAMUX_DEVICE static void AddLora(const EmbeddingLoraOnDevice& lora, std::int32_t token, std::int64_t column,
                                     std::int64_t width, float (&values)[kGroup]) {
    const DType dtype = Load(&lora.dtype);
    const std::int32_t rank = Load(&lora.module.rank);
    const float* factors = Load(&lora.module.factors);
    for (std::int32_t j = 0; j < rank; ++j) {
      const void* b = Load(Load(&lora.module.b_rows) + j);
      float factor = Load(&lora.module.scale);
      if (factors != nullptr) factor *= Load(factors + j);
      factor *= LoadOwnElement(dtype, Load(Load(&lora.module.a_rows) + j), token);
      float weights[kGroup] = {};
      if (dtype != DType::kI8 && dtype != DType::kF8E4M3) {
        LoadOwnGroup(dtype, b, column, width, weights);
      } else {
        for (int i = 0; i < kGroup; ++i)
          if (column + i < width) weights[i] = LoadOwnElement(dtype, b, column + i);
      }
      LORAMUX_UNROLL
      for (int i = 0; i < kGroup; ++i) values[i] = Fma(factor, weights[i], values[i]);
    }
    const float* gains = Load(&lora.module.gains);
    if (gains == nullptr) return;
    LORAMUX_UNROLL
    for (int i = 0; i < kGroup; ++i)
      if (column + i < width) values[i] *= Load(gains + column + i);
  }
  LORAMUX_DEVICE static const void* Find(const OwnRowsOnDevice& own, std::int32_t token) {
    const std::int32_t* tokens = Load(&own.tokens);
    const std::int32_t count = Load(&own.count);
    std::int32_t low = 0, high = count;
    while (low < high) {
      const std::int32_t middle = low + (high - low) / 2;
      if (Load(tokens + middle) < token) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low == count || Load(tokens + low) != token) return nullptr;
    return Load(Load(&own.rows) + low);
  }
};

template <typename T>
struct ExcludeTokensKernel {
  using Arguments = ExcludeTokensArguments;
  static constexpr int kThreads = kPartThreads, kMinBlocks = 1;
  LORAMUX_DEVICE static void Run(const Arguments& a) {
    if (IsBeyond(a.rows, a.width)) return;
    float values[kGroup];
    LORAMUX_UNROLL
    for (float& value : values) value = -__builtin_inff();
    StoreGroup<float>({a.y + a.begin, a.y_stride}, BlockX(), ColumnOfThread(), a.width, values);
  }
};

// Block (tile, part): kOwnTileRows rows of x, and kRows own rows of each of their adapters, one a warp at a time.
template <typename T>
struct OwnProductsKernel {
  using Arguments = OwnProductsArguments;
  static constexpr int kThreads = 128, kMinBlocks = 1;
  static constexpr std::int32_t kWarps = kThreads / 32, kRows = 8 * kWarps;

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    const std::int32_t begin = static_cast<std::int32_t>(BlockX()) * kOwnTileRows, rows = Load(a.rows);
    const std::int32_t end = begin + kOwnTileRows < rows ? begin + kOwnTileRows : rows;
    for (std::int32_t first = begin; first < end;) {
      const OwnPartsOnDevice* own = Load(a.own + first);
      std::int32_t last = first + 1;
      while (last < end && Load(a.own + last) == own) ++last;
      if (own != nullptr) Adapter(a, own, first, last - first);
      first = last;
    }
  }

 private:
  // The rows of one adapter.
  LORAMUX_DEVICE static void Adapter(const Arguments& a, const OwnPartsOnDevice* own, std::int32_t first,
                                     std::int32_t count) {
    const std::int32_t own_rows = Load(&own->output.count), part = static_cast<std::int32_t>(BlockY()) * kRows;
    for (std::int32_t i = 0; i < kRows; i += kWarps) {
      const std::int32_t index = part + i + static_cast<std::int32_t>(Warp());
      if (index >= own_rows) return;  // with its whole warp
      const void* row = Load(Load(&own->output.rows) + index);
      const std::int32_t token = Load(Load(&own->output.tokens) + index);
      float sums[kOwnTileRows] = {};
      for (std::int64_t column = Lane() * kGroup; column < a.width; column += 32 * kGroup) {
        float weights[kGroup];
        LoadOwnGroup(Load(&own->dtype), row, column, a.width, weights);
        LORAMUX_UNROLL
        for (int r = 0; r < kOwnTileRows; ++r) {
          if (r < count) AddProducts(a, first + r, column, weights, sums[r]);
        }
      }
      LORAMUX_UNROLL
      for (int r = 0; r < kOwnTileRows; ++r) {
        if (r >= count) break;
        const float sum = SumWarp(sums[r]);
        if (Lane() == 0) Store(a.y + (first + r) * a.y_stride + token, sum);
      }
    }
  }
  LORAMUX_DEVICE static void AddProducts(const Arguments& a, std::int64_t row, std::int64_t column,
                                         const float (&weights)[kGroup], float& sum) {
    float x[kGroup];
    LoadGroup<T>({static_cast<const T*>(a.x), a.x_stride}, row, column, a.width, x);
    LORAMUX_UNROLL
    for (int i = 0; i < kGroup; ++i) sum = Fma(x[i], weights[i], sum);
  }
};

}  // namespace loramux::gpu
