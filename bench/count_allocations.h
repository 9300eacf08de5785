// Counts what a part of a benchmark allocates on the heap: linked in, it replaces the global operator new.
#pragma once

#include <atomic>

namespace loramux {

inline std::atomic<bool> counting_allocations{false};  // while true
inline std::atomic<long> allocations{0};

}  // namespace loramux
