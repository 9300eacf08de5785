// Argument structs of the row-wise kernels, and the calls that launch them. All pointers are the device's; strides are
// in elements. `rows` is the number of rows in device memory, so that one recorded graph serves batches of any size;
// `max_rows` bounds it and sizes the grid.
#pragma once

#include <cstdint>

#include "formats/dtype.h"
#include "formats/operation_forms.h"
#include "gpu/device.h"
#include "gpu/kernels/own_rows.h"
#include "gpu/kernels/packed.h"

namespace loramux::gpu {

// hidden[i, :] = table[tokens[i], :], or the last row for tokens beyond the table. Instance: the type of the table; f32
// if it is quantised.
struct EmbedRowsArguments {
  const void* table;           // [table_rows, width], or the codes of `form`
  const std::int32_t* tokens;  // [rows]
  const std::int32_t* rows;
  float* hidden;  // [rows, width]
  std::int64_t width, hidden_stride;
  std::int64_t table_rows;
  PackedForm form = {};
};
void EmbedRows(DeviceStream& stream, DType dtype, std::int64_t max_rows, const EmbedRowsArguments& arguments);

// hidden[i, :] += table[row_position[i] + rows_before, :]. Instance: the type of the table.
struct EmbedPositionsArguments {
  const void* table;  // [*, width]
  const std::int32_t* row_position;
  const std::int32_t* rows;
  float* hidden;  // [rows, width]
  std::int64_t width, hidden_stride, rows_before;
};
void EmbedPositions(DeviceStream& stream, DType dtype, std::int64_t max_rows, const EmbedPositionsArguments& arguments);

// First x[i, :] += added_scale * added[i, :] if `added` is not null; then y[i, :] = x[i, :] / sqrt(mean(x[i, :]^2) +
// eps)
// * (weight + weight_offset), or y = x if `weight` is null, or with a `bias` the LayerNorm: (x[i, :] - mean) / sqrt(
// variance + eps) * weight + bias. x and y may be the same. Instance: the type of y. Sums in
// f32, in an order that depends on the width alone.
struct NormRowsArguments {
  float* x;             // [rows, width]
  const float* added;   // [rows, width], or null
  const float* weight;  // [width]
  void* y;              // [rows, width]
  const std::int32_t* rows;
  std::int64_t width, x_stride, added_stride, y_stride;
  float eps;
  OwnNorm own = {};  // in place of `weight`
  float added_scale = 1, weight_offset = 0;
  const float* bias = nullptr;
};
// Threads of a block that norms rows: by the width alone, as the order of the sums is.
std::uint32_t NormThreads(std::int64_t width);
void NormRows(DeviceStream& stream, DType dtype, std::int64_t max_rows, const NormRowsArguments& arguments);

// y[i, j] = f(x[i, j]) * x[i, width + j], or f(x[i, j]) if it is not `gated`; kClampedSwiglu as activation.h says.
// Instance: the type of y.
struct GateMulArguments {
  const float* x;  // [rows, 2 width], or [rows, width]
  void* y;         // [rows, width]
  const std::int32_t* rows;
  std::int64_t width, x_stride, y_stride;
  GateForm form;
};
void GateMul(DeviceStream& stream, DType dtype, std::int64_t max_rows, const GateMulArguments& arguments);

// y[i, :] = x[indices[i], :], f32. One instance: f32.
struct GatherRowsArguments {
  const float* x;
  const std::int32_t* indices;  // [rows]
  const std::int32_t* rows;
  float* y;
  std::int64_t width, x_stride, y_stride;
};
void GatherRows(DeviceStream& stream, std::int64_t max_rows, const GatherRowsArguments& arguments);

// y[i, :] += factor * x[i, :], f32. One instance: f32.
struct AddRowsArguments {
  const float* x;
  float* y;
  const std::int32_t* rows;
  std::int64_t width, x_stride, y_stride;
  float factor = 1;
};
void AddRows(DeviceStream& stream, std::int64_t max_rows, const AddRowsArguments& arguments);

// x[i, :] *= factor; then, if cap > 0, x[i, :] = cap * tanh(x[i, :] / cap), except where it is -infinity, f32. One
// instance: f32.
struct ScaleRowsArguments {
  float* x;
  const std::int32_t* rows;
  std::int64_t width, x_stride;
  float factor, cap;
};
void ScaleRows(DeviceStream& stream, std::int64_t max_rows, const ScaleRowsArguments& arguments);

// For each range: sum[:] (f64) = before[:] + the range's rows of x in ascending order. Instance: the type of x.
struct PoolRangeOnDevice {
  std::int32_t first_row, rows;
};
struct PoolRowsArguments {
  const void* x;                    // [*, width]
  const PoolRangeOnDevice* ranges;  // [num_ranges]
  double* sums;                     // [num_ranges, width]: before on entry, after on return
  std::int64_t width, x_stride;
};
void PoolRows(DeviceStream& stream, DType dtype, std::int64_t num_ranges, const PoolRowsArguments& arguments);

// Copies whole pages of one arena; destinations are never sources. One instance: f32. REQUIRES: page_bytes is a
// multiple of 16.
struct CopyPagesArguments {
  std::byte* base;
  std::int64_t page_stride, page_bytes;
  const std::uint32_t* pairs;  // [num_copies][source, destination]
};
void CopyPages(DeviceStream& stream, std::int64_t num_copies, const CopyPagesArguments& arguments);

}  // namespace loramux::gpu
