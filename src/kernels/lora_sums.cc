#include "kernels/lora_sums.h"

#include "base/ceil_divide.h"
#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/reference/kernels.h"

namespace loramux {

std::int64_t LoraSumsFloats(std::int64_t rows, std::int64_t in, std::int64_t max_rank) {
  return rows * (CeilDivide(in, 128) * 128 + CeilDivide(max_rank, 16) * 16);
}

void LoraSums(Backend backend, const LoraSumsInput& input, std::span<const LoraSumsOutput> outputs, bool fused,
              float* workspace) {
  CHECK(IsWeightDType(input.dtype));
  CHECK_GT(input.in, 0);
  for (const LoraSumsOutput& output : outputs) {
    CHECK_GT(output.weights.rank, 0);
    CHECK(IsAdapterRowDType(output.weights.dtype));
    CHECK_GT(output.out, 0);
  }
  const auto implementation = backend == Backend::kReference ? reference::LoraSums : cpu::LoraSums;
  implementation(input, outputs, fused, workspace);
}

}  // namespace loramux
