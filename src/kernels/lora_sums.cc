#include "kernels/lora_sums.h"

#include "base/ceil_divide.h"
#include "base/check.h"

namespace loramux {

std::int64_t LoraSumsFloats(std::int64_t rows, std::int64_t in, std::int64_t max_rank) {
  return rows * (CeilDivide(in, 128) * 128 + CeilDivide(max_rank, 16) * 16);
}

void LoraSumsArguments::Check() const {
  CHECK(IsWeightDType(dtype));
  CHECK_GT(in, 0);
  for (const LoraSumsOutput& output : outputs) {
    CHECK_GT(output.weights.rank, 0);
    CHECK(IsAdapterRowDType(output.weights.dtype));
    CHECK_GT(output.out, 0);
  }
}

}  // namespace loramux
