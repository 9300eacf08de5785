// Loads and evictions of adapters of several sizes, by the real page pool and residency manager, and by an allocator
// that wants each in one piece, side by side. Counted: nothing is copied, and no page is touched.
#pragma once

#include <cstdint>
#include <vector>

#include "adapter/layout.h"
#include "base/result.h"

namespace loramux {

struct FragmentationOptions {
  std::int64_t pool_bytes = 0, page_bytes = 0;
  std::vector<AdapterLayout> layouts;  // adapter i has layouts[i % size]; laid out in pages of page_bytes
  std::uint32_t adapters = 1000;
  std::int64_t cycles = 10'000;
  std::uint64_t seed = 1;
};

// Of one way to allocate. Of each load the least recently used adapters go until it fits.
struct AllocatorFigures {
  std::int64_t failures = 0;  // loads for which there were free bytes enough, but not in one piece
  std::int64_t evictions = 0;
  // mean over the loads. External: of the free bytes, those outside the largest hole
  double external = 0, internal = 0;
  // where a hole is what is needed. Internal: of the adapters' pages, what
  // is not payload
  double unused = 0;                       // of the pool, mean
  double held = 0;                         // adapters at once, mean
  std::vector<double> external_over_time;  // mean of each hundredth of the loads
};

struct FragmentationFigures {
  AllocatorFigures contiguous, paged;
};

// Error: a layout is larger than the pool.
Result<FragmentationFigures> CountFragmentation(const FragmentationOptions& options);

}  // namespace loramux
