// The row-wise kernels (elementwise.h). A thread has 8 neighbouring elements of a row at a time: 16 bytes at once where
// address and stride allow it.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/elementwise.h"
#include "gpu/kernels/packed_kernel.h"
#include "gpu/kernels/tanh.h"

namespace loramux::gpu {

// Elements that a thread reads at once.
inline constexpr std::int64_t kGroup = 8;
// Threads of a block of the kernels that need no meeting, and the elements of a row that it has.
inline constexpr std::int64_t kPartThreads = 128;
inline constexpr std::int64_t kPartElements = kPartThreads * kGroup;

// Whether each row of a matrix begins at a multiple of 16 bytes.
LORAMUX_DEVICE bool RowsAreAligned(const void* base, std::int64_t stride_bytes) {
  return ((reinterpret_cast<std::uint64_t>(base) | static_cast<std::uint64_t>(stride_bytes)) & 15) == 0;
}

// One matrix of a kernel: where its rows are, and whether they are aligned.
template <typename T>
struct Rows {
  T* base;
  std::int64_t stride;
  bool aligned;
  LORAMUX_DEVICE Rows(T* base, std::int64_t stride)
      : base(base), stride(stride), aligned(RowsAreAligned(base, stride * static_cast<std::int64_t>(sizeof(T)))) {}
};

// values = the 8 elements of `row` from `column`, which is a multiple of 8; zeros from `width` on.
template <typename T>
LORAMUX_DEVICE void LoadGroup(const Rows<const T>& rows, std::int64_t row, std::int64_t column, std::int64_t width,
                              float (&values)[kGroup]) {
  const T* from = rows.base + row * rows.stride + column;
  if (rows.aligned && column + kGroup <= width) {
    if constexpr (sizeof(T) == 2) {
      const Vec4 words = Load(reinterpret_cast<const Vec4*>(from));
      const Pair pairs[4] = {Unpack<T>(words.x), Unpack<T>(words.y), Unpack<T>(words.z), Unpack<T>(words.w)};
      LORAMUX_UNROLL
      for (int i = 0; i < 4; ++i) values[2 * i] = pairs[i].low, values[2 * i + 1] = pairs[i].high;
    } else {
      const Vec4 low = Load(reinterpret_cast<const Vec4*>(from)), high = Load(reinterpret_cast<const Vec4*>(from) + 1);
      const std::uint32_t words[kGroup] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      LORAMUX_UNROLL
      for (int i = 0; i < kGroup; ++i) values[i] = AsFloat(words[i]);
    }
    return;
  }
  LORAMUX_UNROLL
  for (int i = 0; i < kGroup; ++i) values[i] = column + i < width ? ToFloat(Load(from + i)) : 0.0f;
}

// The other direction; stores nothing from `width` on.
template <typename T>
LORAMUX_DEVICE void StoreGroup(const Rows<T>& rows, std::int64_t row, std::int64_t column, std::int64_t width,
                               const float (&values)[kGroup]) {
  T* to = rows.base + row * rows.stride + column;
  if (rows.aligned && column + kGroup <= width) {
    if constexpr (sizeof(T) == 2) {
      Store(reinterpret_cast<Vec4*>(to), Vec4{Pack<T>(values[0], values[1]), Pack<T>(values[2], values[3]),
                                              Pack<T>(values[4], values[5]), Pack<T>(values[6], values[7])});
    } else {
      Store(reinterpret_cast<Vec4*>(to),
            Vec4{AsBits(values[0]), AsBits(values[1]), AsBits(values[2]), AsBits(values[3])});
      Store(reinterpret_cast<Vec4*>(to) + 1,
            Vec4{AsBits(values[4]), AsBits(values[5]), AsBits(values[6]), AsBits(values[7])});
    }
    return;
  }
  LORAMUX_UNROLL
  for (int i = 0; i < kGroup; ++i) {
    if (column + i < width) Store(to + i, FromFloat<T>(values[i]));
  }
}

// The first column of this thread, in kernels whose block (row, part) has kPartElements elements of a row.
LORAMUX_DEVICE std::int64_t ColumnOfThread() { return BlockY() * kPartElements + ThreadIndex() * kGroup; }

// Whether this thread has nothing to do in such a kernel.
LORAMUX_DEVICE bool IsBeyond(const std::int32_t* rows, std::int64_t width) {
  return ColumnOfThread() >= width || static_cast<std::int32_t>(BlockX()) >= Load(rows);
}

template <typename T>
struct EmbedRowsKernel {
  using Arguments = EmbedRowsArguments;
  static constexpr int kThreads = kPartThreads, kMinBlocks = 1;
  LORAMUX_DEVICE static void Run(const Arguments& a) {
    if (IsBeyond(a.rows, a.width)) return;
    const std::int64_t row = BlockX(), column = ColumnOfThread();
    const std::int64_t token = Load(a.tokens + row), from = token < a.table_rows ? token : a.table_rows - 1;
    float values[kGroup];
    if (a.form.scales != nullptr)
      LoadEight(a.form, a.table, a.width, from, column, values);
    else
      LoadGroup<T>({static_cast<const T*>(a.table), a.width}, from, column, a.width, values);
    StoreGroup<float>({a.hidden, a.hidden_stride}, row, column, a.width, values);
  }
};

template <typename T>
struct EmbedPositionsKernel {
  using Arguments = EmbedPositionsArguments;
  static constexpr int kThreads = kPartThreads, kMinBlocks = 1;
  LORAMUX_DEVICE static void Run(const Arguments& a) {
    if (IsBeyond(a.rows, a.width)) return;
    const std::int64_t row = BlockX(), column = ColumnOfThread();
    float values[kGroup], added[kGroup];
    LoadGroup<T>({static_cast<const T*>(a.table), a.width}, Load(a.row_position + row) + a.rows_before, column, a.width,
                 added);
    LoadGroup<float>({a.hidden, a.hidden_stride}, row, column, a.width, values);
    LORAMUX_UNROLL
    for (int i = 0; i < kGroup; ++i) values[i] += added[i];
    StoreGroup<float>({a.hidden, a.hidden_stride}, row, column, a.width, values);
  }
};

LORAMUX_DEVICE float Activate(Activation f, float x) {
  if (f == Activation::kRelu) return Max(x, 0.0f);
  if (f == Activation::kRelu2) return Max(x, 0.0f) * Max(x, 0.0f);
  if (f == Activation::kGelu) return 0.5f * x * (1.0f + Erf(0.70710678f * x));
  // The tanh form of GELU: (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), with u = sqrt(2 / pi) (x + 0.044715 x^3).
  const float z = f == Activation::kGeluTanh ? x * Fma(x * x, 0.0713548163f, 1.59576912f) : x;
  return x / (1.0f + Exp(-z));
}

template <typename T>
struct GateMulKernel {
  using Arguments = GateMulArguments;
  static constexpr int kThreads = kPartThreads, kMinBlocks = 1;
  LORAMUX_DEVICE static void Run(const Arguments& a) {
    if (IsBeyond(a.rows, a.width)) return;
    Group(a, BlockX(), ColumnOfThread());
  }
  // 8 elements of one row.
  LORAMUX_DEVICE static void Group(const Arguments& a, std::int64_t row, std::int64_t column) {
    float gate[kGroup], up[kGroup];
    LoadGroup<float>({a.x, a.x_stride}, row, column, a.width, gate);
    if (a.form.gated) LoadGroup<float>({a.x + a.width, a.x_stride}, row, column, a.width, up);
    LORAMUX_UNROLL
    for (int i = 0; i < kGroup; ++i) {
      if (a.form.f == Activation::kClampedSwiglu) {
        const float g = Min(gate[i], a.form.limit);
        gate[i] = g / (1.0f + Exp(-a.form.alpha * g)) * (Max(Min(up[i], a.form.limit), -a.form.limit) + 1.0f);
        continue;
      }
      gate[i] = Activate(a.form.f, gate[i]);
      if (a.form.gated) gate[i] *= up[i];
    }
    StoreGroup<T>({static_cast<T*>(a.y), a.y_stride}, row, column, a.width, gate);
  }
};

template <typename T>
struct GatherRowsKernel {
  using Arguments = GatherRowsArguments;
  static constexpr int kThreads = kPartThreads, kMinBlocks = 1;
  LORAMUX_DEVICE static void Run(const Arguments& a) {
    if (IsBeyond(a.rows, a.width)) return;
    const std::int64_t row = BlockX(), column = ColumnOfThread();
    float values[kGroup];
    LoadGroup<float>({a.x, a.x_stride}, Load(a.indices + row), column, a.width, values);
    StoreGroup<float>({a.y, a.y_stride}, row, column, a.width, values);
  }
};

template <typename T>
struct AddRowsKernel {
  using Arguments = AddRowsArguments;
  static constexpr int kThreads = kPartThreads, kMinBlocks = 1;
  LORAMUX_DEVICE static void Run(const Arguments& a) {
    if (IsBeyond(a.rows, a.width)) return;
    const std::int64_t row = BlockX(), column = ColumnOfThread();
    float x[kGroup], y[kGroup];
    LoadGroup<float>({a.x, a.x_stride}, row, column, a.width, x);
    LoadGroup<float>({a.y, a.y_stride}, row, column, a.width, y);
    LORAMUX_UNROLL
    for (int i = 0; i < kGroup; ++i) y[i] = Fma(x[i], a.factor, y[i]);
    StoreGroup<float>({a.y, a.y_stride}, row, column, a.width, y);
  }
};

template <typename T>
struct ScaleRowsKernel {
  using Arguments = ScaleRowsArguments;
  static constexpr int kThreads = kPartThreads, kMinBlocks = 1;
  LORAMUX_DEVICE static void Run(const Arguments& a) {
    if (IsBeyond(a.rows, a.width)) return;
    const std::int64_t row = BlockX(), column = ColumnOfThread();
    float x[kGroup];
    LoadGroup<float>({a.x, a.x_stride}, row, column, a.width, x);
    LORAMUX_UNROLL
    for (int i = 0; i < kGroup; ++i) {
      x[i] *= a.factor;
      if (a.cap > 0 && x[i] != -__builtin_inff()) x[i] = a.cap * Tanh(x[i] / a.cap);
    }
    StoreGroup<float>({a.x, a.x_stride}, row, column, a.width, x);
  }
};

// One block for a range and a part of the columns.
template <typename T>
struct PoolRowsKernel {
  using Arguments = PoolRowsArguments;
  static constexpr int kThreads = kPartThreads, kMinBlocks = 1;
  LORAMUX_DEVICE static void Run(const Arguments& a) {
    const std::int64_t column = ColumnOfThread();
    if (column >= a.width) return;
    const PoolRangeOnDevice range = Load(a.ranges + BlockX());
    double* sums = a.sums + BlockX() * a.width + column;
    double sum[kGroup];
    LORAMUX_UNROLL
    for (int i = 0; i < kGroup; ++i) sum[i] = column + i < a.width ? Load(sums + i) : 0.0;
    const Rows<const T> x(static_cast<const T*>(a.x), a.x_stride);
    for (std::int64_t row = range.first_row; row < range.first_row + range.rows; ++row) {
      float values[kGroup];
      LoadGroup<T>(x, row, column, a.width, values);
      LORAMUX_UNROLL
      for (int i = 0; i < kGroup; ++i) sum[i] += static_cast<double>(values[i]);
    }
    LORAMUX_UNROLL
    for (int i = 0; i < kGroup; ++i) {
      if (column + i < a.width) Store(sums + i, sum[i]);
    }
  }
};

// Block (copy, part): kPart bytes of one page.
template <typename T>
struct CopyPagesKernel {
  using Arguments = CopyPagesArguments;
  static constexpr int kThreads = kPartThreads, kMinBlocks = 1;
  static constexpr int kVectors = 8;  // vectors of 16 bytes that each thread copies
  static constexpr std::int64_t kPart = std::int64_t{16} * kThreads * kVectors;
  LORAMUX_DEVICE static void Run(const Arguments& a) {
    const std::byte* from = a.base + Load(a.pairs + 2 * BlockX()) * a.page_stride;
    std::byte* to = a.base + Load(a.pairs + 2 * BlockX() + 1) * a.page_stride;
    const std::int64_t first = BlockY() * kPart + ThreadIndex() * 16;
    Vec4 values[kVectors];
    LORAMUX_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const std::int64_t at = first + i * 16 * kThreads;
      if (at < a.page_bytes) values[i] = Load(reinterpret_cast<const Vec4*>(from + at));
    }
    LORAMUX_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const std::int64_t at = first + i * 16 * kThreads;
      if (at < a.page_bytes) Store(reinterpret_cast<Vec4*>(to + at), values[i]);
    }
  }
};

}  // namespace loramux::gpu
