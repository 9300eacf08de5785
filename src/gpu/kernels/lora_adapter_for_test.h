// Adapters of tests of the LoRA kernels, in device memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "formats/dtype.h"
#include "gpu/kernels/lora.h"

namespace loramux::gpu {

// Rows in one piece of device memory: in shuffled order, 64-byte aligned, with NaN between them.
struct PlacedRowsForTest {
  std::vector<const void*> addresses;
  const std::byte* base = nullptr;
  std::size_t bytes = 0, row_bytes = 0;  // bytes of the piece; bytes of its rows alone
};

// One adapter: a module for each slice.
struct AdapterForTest {
  DType dtype = DType::kF32;
  std::vector<std::int32_t> ranks;
  std::vector<float> scales;
  std::vector<std::vector<std::vector<float>>> a, b;  // [slice][rank][in or out], as rounded
  std::vector<std::vector<float>> gains, shifts;      // [slice][out]; empty: none
  PlacedRowsForTest a_rows, b_rows;                   // rows of all slices
  const LoraModule* modules = nullptr;                // on the device

  std::int32_t max_rank() const { return *std::max_element(ranks.begin(), ranks.end()); }
};

// Adjacent rows of a batch; adapter null: none.
struct RangeForTest {
  const AdapterForTest* adapter;
  std::int32_t rows;
};

}  // namespace loramux::gpu
