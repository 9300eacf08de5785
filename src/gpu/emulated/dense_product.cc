#include "gpu/emulated/dense_product.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "gpu/kernel_api.h"

namespace loramux::gpu {
namespace {

// A sum has 16 parts, each of every 16th k in ascending order.
using Lanes = float __attribute__((vector_size(32)));
constexpr std::int64_t kLanes = 16;

template <typename T>
void Widen(const void* from, std::int64_t count, float* to) {
  const T* elements = static_cast<const T*>(from);
  for (std::int64_t i = 0; i < count; ++i) to[i] = ToFloat(elements[i]);
}

void Widen(DType dtype, const void* from, std::int64_t count, float* to) {
  switch (dtype) {
    case DType::kF32:
      return Widen<float>(from, count, to);
    case DType::kBF16:
      return Widen<Bf16>(from, count, to);
    case DType::kF16:
      return Widen<Half>(from, count, to);
    default:
      CHECK(IsWeightDType(dtype));
  }
}

void LoadLanes(const float* from, Lanes& low, Lanes& high) {
  std::memcpy(&low, from, sizeof(low));
  std::memcpy(&high, from + 8, sizeof(high));
}

float SumLanes(const Lanes& low, const Lanes& high) {
  const Lanes sum = low + high;
  return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

// dot(x[i], w) for kRows rows of x.
template <int kRows>
void Dot(const float* const (&x)[kRows], const float* w, std::int64_t k, float (&sums)[kRows]) {
  Lanes low[kRows] = {}, high[kRows] = {};
  std::int64_t t = 0;
  for (; t + kLanes <= k; t += kLanes) {
    Lanes w_low, w_high, x_low, x_high;
    LoadLanes(w + t, w_low, w_high);
    for (int i = 0; i < kRows; ++i) {
      LoadLanes(x[i] + t, x_low, x_high);
      low[i] += w_low * x_low;
      high[i] += w_high * x_high;
    }
  }
  for (int i = 0; i < kRows; ++i) {
    sums[i] = SumLanes(low[i], high[i]);
    for (std::int64_t rest = t; rest < k; ++rest) sums[i] += x[i][rest] * w[rest];
  }
}

}  // namespace

std::vector<float> WidenRows(const DenseProduct& product) {
  std::vector<float> x(static_cast<std::size_t>(product.m * product.k));
  const std::int64_t row_bytes = product.x_stride * static_cast<std::int64_t>(DTypeSize(product.dtype));
  for (std::int64_t i = 0; i < product.m; ++i) {
    Widen(product.dtype, static_cast<const std::byte*>(product.x) + i * row_bytes, product.k, &x[i * product.k]);
  }
  return x;
}

void MultiplyOutputs(const DenseProduct& product, const float* x, std::int64_t first) {
  const std::int64_t k = product.k;
  const std::int64_t row_bytes = k * static_cast<std::int64_t>(DTypeSize(product.dtype));
  std::vector<float> w(static_cast<std::size_t>(k));
  for (std::int64_t j = first; j < std::min(first + kDenseOutputs, product.n); ++j) {
    Widen(product.dtype, static_cast<const std::byte*>(product.w) + j * row_bytes, k, w.data());
    const auto store = [&](std::int64_t i, float sum) {
      float& y = product.y[i * product.y_stride + j];
      if (product.bias != nullptr) sum += product.bias[j];
      y = product.accumulate ? y + sum : sum;
    };
    std::int64_t i = 0;
    for (; i + 2 <= product.m; i += 2) {
      float sums[2];
      Dot<2>({x + i * k, x + (i + 1) * k}, w.data(), k, sums);
      store(i, sums[0]);
      store(i + 1, sums[1]);
    }
    if (i < product.m) {
      float sums[1];
      Dot<1>({x + i * k}, w.data(), k, sums);
      store(i, sums[0]);
    }
  }
}

}  // namespace loramux::gpu
