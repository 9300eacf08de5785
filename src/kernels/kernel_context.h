// The parameters common to all kernels: the implementation and the threads.
#pragma once

#include "kernels/thread_pool.h"

namespace loramux {

// Which implementation computes.
enum class Backend {
  kReference,  // plain float loops: the oracle of every test
  kCpu,        // Google Highway, dispatched at run time to the best instruction set
};

// Not owning. Kernels called with one context run one at a time.
struct KernelContext {
  Backend backend = Backend::kCpu;
  ThreadPool* pool = nullptr;  // never null
};

}  // namespace loramux
