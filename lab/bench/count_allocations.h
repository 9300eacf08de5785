// Counts the heap allocations of a part of a benchmark. Linked in, it replaces the global operator new.
#pragma once

#include <atomic>

namespace loramux {

inline std::atomic<bool> counting_allocations{false};  // allocations are counted while true
// Heap allocations counted so far.
inline std::atomic<long> allocations{0};

}  // namespace loramux
