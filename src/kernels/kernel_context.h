// What all kernels share: the implementation and the threads, matrices of floats, and how an operation is declared.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/check.h"
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

// A matrix: consecutive rows are `stride` floats apart, and may be wider than an operation uses. Not owning.
template <typename Float>
struct RowsOf {
  Float* data = nullptr;
  std::int64_t stride = 0;

  Float* operator[](std::int64_t row) const { return data + row * stride; }
  // The same rows from column `first` on; the rows from `first` on.
  RowsOf From(std::int64_t first) const { return {data + first, stride}; }
  RowsOf Below(std::int64_t first) const { return {data + first * stride, stride}; }
  operator RowsOf<const Float>() const requires(!std::is_const_v<Float>) { return {data, stride}; }
};
using Rows = RowsOf<float>;
using ConstRows = RowsOf<const float>;

// Rows, or columns, [begin, end).
struct IndexRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Checks the arguments and calls the implementation of the context's backend.
template <typename Arguments>
void RunKernel(const KernelContext& context, const Arguments& arguments,
               void (*reference)(const KernelContext&, const Arguments&),
               void (*cpu)(const KernelContext&, const Arguments&)) {
  CHECK(context.pool != nullptr);
  arguments.Check();
  (context.backend == Backend::kReference ? reference : cpu)(context, arguments);
}

// Declares the operation `Name`, whose contract stands at NameArguments. Both implementations have it but for the
// checks: reference::Name (reference/, plain float loops) and cpu::Name (cpu/).
#define LORAMUX_KERNEL(Name)                                                         \
  namespace reference {                                                              \
  void Name(const KernelContext& context, const Name##Arguments& arguments);         \
  }                                                                                  \
  namespace cpu {                                                                    \
  void Name(const KernelContext& context, const Name##Arguments& arguments);         \
  }                                                                                  \
  inline void Name(const KernelContext& context, const Name##Arguments& arguments) { \
    RunKernel(context, arguments, reference::Name, cpu::Name);                       \
  }

}  // namespace loramux
