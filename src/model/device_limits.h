// What the memory of a model on a device is made for.
#pragma once

#include <cstdint>

namespace loramux {

// The largest batch that a workspace is made for.
struct DeviceModelLimits {
  std::int64_t max_tokens = 0;      // tokens of a batch
  std::int64_t max_sequences = 0;   // sequences of a batch
  std::int64_t max_logit_rows = 0;  // rows of logits of a batch, without scored rows
  std::int64_t max_positions = 0;   // positions of a sequence
  std::int64_t max_rank = 0;        // rank of an adapter; 0: no adapters
  std::int64_t page_tokens = 16;    // KvLayout::page_tokens
  std::int64_t state_pages = 0;     // KvLayout::state_pages
  int threads = 1;                  // threads of the host, for the rows that the processor samples
};

}  // namespace loramux
