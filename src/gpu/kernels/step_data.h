// What the kernels read about a batch, in device memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace loramux::gpu {

// One sequence's rows in this step.
struct SequenceOnDevice {
  std::int32_t first_row, rows;  // rows of the batch
  std::int32_t position;         // position of the first row
  // Index in the page tables: pages of positions [0, T), [T, 2T), ... Before them, those of its states.
  std::int32_t first_page;
};

// The layout of keys and values in a device's page, from its first byte:
//   [layer] { K: [kv_head][page_tokens][head_dim]   V: [kv_head][page_tokens][head_dim] }
// Extents and offsets are those of KvLayout (tensor/kv_layout.h); only the order within K of a head differs, because a
// GPU reads 16 bytes of one position at once. Elements have the type of the kernel's instance.
struct PagesOnDevice {
  std::byte* base;
  std::int64_t page_stride;  // bytes
  std::int32_t page_tokens, num_kv_heads, head_dim;
};

}  // namespace loramux::gpu
