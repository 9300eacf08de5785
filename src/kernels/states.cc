#include "kernels/states.h"

#include <algorithm>

namespace loramux {

// From the last head to the first: where a query goes, only what was moved before has lain.
void SplitGates(const KernelContext& context, const SplitGatesArguments& a) {
  const std::int64_t m = a.rows, dim = a.head_dim;
  const std::int64_t tasks = std::min<std::int64_t>(m, m * a.heads * dim < 16384 ? 1 : context.pool->size() * 4);
  context.pool->Run(tasks, [&](std::int64_t task, int) {
    for (std::int64_t i = m * task / tasks; i < m * (task + 1) / tasks; ++i) {
      for (std::int64_t head = a.heads - 1; head >= 0; --head) {
        float* const query = a.x[i] + 2 * head * dim;
        std::copy_n(query + dim, dim, a.y[i] + head * dim);
        std::copy_n(query, dim, a.x[i] + (a.heads + head) * dim);
      }
    }
  });
}

}  // namespace loramux
