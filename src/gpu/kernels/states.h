// Layers that carry a state from token to token on a device: a causal convolution, the gated delta rule or Mamba-2's
// selective scan, and what stands around them. They do what kernels/states.h says. A row's result depends on the state
// before it and on its own row alone, so that it has the same bits however a prompt is cut into steps, and whatever
// else the batch has. All pointers are the device's; strides are in elements; `rows` and `num_sequences` are numbers in
// device memory, which max_rows and max_sequences bound.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/dtype.h"
#include "gpu/device.h"
#include "gpu/kernels/step_data.h"

namespace loramux::gpu {

// The states of one kind and layer: floats in the pages of each sequence, `first` floats after the begin of the first
// one. They lie in the state_pages pages that stand before those of the sequence's positions in the page tables; a
// sequence at position 0 begins with zeros, whatever the pages hold.
struct StatesOnDevice {
  std::byte* base;
  std::int64_t page_stride;  // bytes
  std::int32_t page_floats;  // floats of a page that states use
  std::int32_t first;
  std::int32_t state_pages;
  const SequenceOnDevice* sequences;
  const std::uint32_t* page_tables;
};

// The positions that a convolution sees at most.
inline constexpr std::int32_t kMaxConvWidth = 8;
// Elements of a head's keys and queries at most.
inline constexpr std::int32_t kMaxKeyDim = 256;

// As CausalConvArguments of kernels/states.h. Reads x once, and again what stands before each block of rows; reads and
// writes each state once. One instance: f32. REQUIRES: 1 < width <= kMaxConvWidth; x and y do not overlap.
struct CausalConvOnDevice {
  const float* weights;              // [width, channels]
  const float* bias;                 // [channels], or null
  const float* x;                    // [rows, channels]
  float* y;                          // [rows, channels]
  const std::int32_t* row_sequence;  // [rows]
  const std::int32_t* rows;
  std::int64_t channels, x_stride, y_stride;
  std::int32_t width;
  StatesOnDevice states;
};
void CausalConv(DeviceStream& stream, std::int64_t max_rows, const CausalConvOnDevice& arguments);

// As DeltaRuleArguments and SelectiveScanArguments of kernels/states.h. Each head's state is read once, stays in
// registers while the sequence's rows go by, and is written once. One instance: f32. REQUIRES: key_dim <= kMaxKeyDim.
struct StateHeadsOnDevice {
  const float* x;      // [rows, 2 key_heads key_dim + value_heads value_dim]
  const float* gates;  // [rows, 2 value_heads] of the delta rule; [rows, value_heads], the steps, of the scan
  const float* rate;   // [value_heads]
  const float* bias;   // [value_heads]
  const float* skip;   // [value_heads]; only of the scan
  float* out;          // [rows, value_heads value_dim]
  const std::int32_t* num_sequences;
  std::int64_t x_stride, gates_stride, out_stride;
  std::int32_t key_heads, value_heads, key_dim, value_dim;
  float least_step, most_step;  // only of the scan
  StatesOnDevice states;
};
void DeltaRule(DeviceStream& stream, std::int64_t max_sequences, const StateHeadsOnDevice& arguments);
void SelectiveScan(DeviceStream& stream, std::int64_t max_sequences, const StateHeadsOnDevice& arguments);

// As GatedRmsNormArguments of kernels/states.h, from x to y. Instance: the type of y.
struct GatedNormOnDevice {
  const float* x;       // [rows, heads head_dim]
  const float* z;       // as x
  const float* weight;  // [head_dim], of each head weight_stride after those of the one before
  void* y;              // as x
  const std::int32_t* rows;
  std::int64_t x_stride, z_stride, y_stride, weight_stride;
  std::int32_t heads, head_dim;
  float eps;
  bool gate_first;
};
void GatedNorm(DeviceStream& stream, DType dtype, std::int64_t max_rows, const GatedNormOnDevice& arguments);

// y[i, j] = x[i, j] * sigmoid(the gate of it), for heads whose gates begin gate_head_stride elements after those of the
// head before. Instance: the type of y.
struct MulSigmoidOnDevice {
  const float* x;     // [rows, width]
  const float* gate;  // the first head's of row 0
  void* y;            // [rows, width]
  const std::int32_t* rows;
  std::int64_t width, x_stride, gate_stride, y_stride;
  std::int32_t head_dim, gate_head_stride;
};
void MulSigmoid(DeviceStream& stream, DType dtype, std::int64_t max_rows, const MulSigmoidOnDevice& arguments);

}  // namespace loramux::gpu
