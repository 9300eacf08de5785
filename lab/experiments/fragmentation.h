// Counts the fragmentation of loads and evictions of adapters of several sizes: with the real page pool and residency
// manager, and with an allocator that needs contiguous memory for each adapter. Copies nothing and touches no page.
#pragma once

#include <cstdint>
#include <vector>

#include "adapter/layout.h"
#include "base/result.h"

namespace loramux {

// Settings.
struct FragmentationOptions {
  std::int64_t pool_bytes = 0, page_bytes = 0;
  std::vector<AdapterLayout> layouts;  // adapter i has layouts[i % size], in pages of page_bytes
  std::uint32_t adapters = 1000;
  std::int64_t cycles = 10'000;  // loads, each of a random adapter that the paged pool does not hold
  std::uint64_t seed = 1;
};

// Results for one allocator. Each load evicts the least recently used adapters until it fits.
struct AllocatorFigures {
  std::int64_t failures = 0;  // loads with enough free bytes that were not contiguous
  std::int64_t evictions = 0;
  // Means over the loads. External: of the free bytes, the share outside the largest hole (contiguous allocator only).
  // Internal: of the adapters' pages, the share that is not payload (paged allocator only).
  double external = 0, internal = 0;
  double unused = 0;                       // unused share of the pool, mean
  double held = 0;                         // adapters held at a time, mean
  std::vector<double> external_over_time;  // mean of each hundredth of the loads
};

// The results side by side.
struct FragmentationFigures {
  AllocatorFigures contiguous, paged;
};

// Runs both allocators on the same sequence of loads. Error: a layout is larger than the pool.
Result<FragmentationFigures> CountFragmentation(const FragmentationOptions& options);

}  // namespace loramux
