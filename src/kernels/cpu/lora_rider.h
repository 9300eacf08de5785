// The LoRA product of a linear layer inside the parallel region of its base product. The region begins with the tasks
// of shrink (coefficients = A x). The tasks of the base product follow, and each one, when it has computed its part of
// y, adds the adapters' part to it (expand), while y is in its caches. So adapters add no region to a layer.
#pragma once

#include <atomic>
#include <cstdint>

#include "kernels/cpu/lora_work.h"
#include "kernels/kernel_context.h"

namespace loramux::cpu {

// Serves one product. Thread-safe.
class LoraRider {
 public:
  // No adapters: no tasks, and Expand does nothing.
  LoraRider() = default;
  // The projections' y are columns of the product's y, whose column 0 is at `y`. Not owning.
  LoraRider(const LoraWork& work, int threads, const float* y);

  // Runs the product's tasks after those of shrink, in one region. fn(task) ends with Expand of what it computed.
  template <typename F>
  void RunWith(ThreadPool& pool, std::int64_t tasks, const F& fn) const {
    // Tasks are handed out in ascending order, so those of shrink run or have run when the first of fn begins.
    pool.Run(tasks_ + tasks, [&](std::int64_t task, int) {
      if (task < tasks_) {
        Shrink(task);
      } else {
        fn(task - tasks_);
      }
    });
  }

  // Prefetches the first rows that Expand of these columns reads.
  void Fetch(IndexRange columns) const {
    if (tasks_ > 0) FetchRows(columns);
  }
  // Adds the adapters' part to rows x columns of y, which the calling thread has computed. Waits for shrink.
  void Expand(IndexRange rows, IndexRange columns) const {
    if (tasks_ > 0) ExpandPart(rows, columns);
  }

 private:
  void Shrink(std::int64_t task) const;
  void FetchRows(IndexRange columns) const;
  void ExpandPart(IndexRange rows, IndexRange columns) const;

  const LoraWork* work_ = nullptr;
  std::int64_t tasks_ = 0;
  const float* y_ = nullptr;
  mutable std::atomic<std::int32_t> open_{0};  // tasks of shrink that have not ended
};

// MatMul, and MatMul of quantised weights, with the tasks of `rider` in the product's parallel region.
void RiddenMatMul(const KernelContext& context, const MatMulArguments& arguments, const LoraRider& rider);
void RiddenGroupMatMul(const KernelContext& context, const MatMulArguments& arguments, const LoraRider& rider);

}  // namespace loramux::cpu
