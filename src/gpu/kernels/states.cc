#include "gpu/kernels/states.h"

#include <limits>

#include "base/ceil_divide.h"
#include "base/check.h"
#include "gpu/kernels/state_heads_kernel.h"
#include "gpu/kernels/states_kernels.h"

namespace loramux::gpu {
namespace {

// Kernels count the floats of a sequence's states in 32 bits.
void CheckFits(const StatesOnDevice& states, std::int64_t floats) {
  CHECK_GT(states.page_floats, 0);
  const std::int64_t room = std::int64_t{states.state_pages} * states.page_floats, end = states.first + floats;
  CHECK(end <= room && end <= std::numeric_limits<std::int32_t>::max());
}

template <typename Heads>
void LaunchHeads(DeviceStream& stream, Kernel kernel, std::int64_t max_sequences, const StateHeadsOnDevice& arguments) {
  if (max_sequences == 0) return;
  CHECK(arguments.key_dim > 0 && arguments.key_dim <= kMaxKeyDim);
  CHECK_EQ(arguments.value_heads % arguments.key_heads, 0);
  CheckFits(arguments.states, std::int64_t{arguments.value_heads} * arguments.key_dim * arguments.value_dim);
  const auto columns = CeilDivide(std::int64_t{arguments.value_dim}, std::int64_t{Heads::kColumns});
  Launch(stream, kernel, DType::kF32,
         {static_cast<std::uint32_t>(max_sequences), static_cast<std::uint32_t>(arguments.value_heads),
          static_cast<std::uint32_t>(columns)},
         Heads::kThreads, Heads::SharedBytes(Heads::VariantOf(arguments)), arguments);
}

}  // namespace

void CausalConv(DeviceStream& stream, std::int64_t max_rows, const CausalConvOnDevice& arguments) {
  if (max_rows == 0) return;
  CHECK(arguments.width > 1 && arguments.width <= kMaxConvWidth);
  CheckFits(arguments.states, (arguments.width - 1) * arguments.channels);
  using K = CausalConvKernel<float>;
  const std::int64_t blocks = CeilDivide(max_rows, std::int64_t{K::kRows});
  const std::int64_t parts = CeilDivide(arguments.channels, std::int64_t{K::kThreads});
  Launch(stream, Kernel::kCausalConv, DType::kF32,
         {static_cast<std::uint32_t>(blocks), static_cast<std::uint32_t>(parts), 1}, K::kThreads, 0, arguments);
}

void DeltaRule(DeviceStream& stream, std::int64_t max_sequences, const StateHeadsOnDevice& arguments) {
  LaunchHeads<DeltaRuleKernel<float>>(stream, Kernel::kDeltaRule, max_sequences, arguments);
}

void SelectiveScan(DeviceStream& stream, std::int64_t max_sequences, const StateHeadsOnDevice& arguments) {
  CHECK_LE(arguments.least_step, arguments.most_step);
  LaunchHeads<SelectiveScanKernel<float>>(stream, Kernel::kSelectiveScan, max_sequences, arguments);
}

void GatedNorm(DeviceStream& stream, DType dtype, std::int64_t max_rows, const GatedNormOnDevice& arguments) {
  if (max_rows == 0) return;
  Launch(stream, Kernel::kGatedNorm, dtype,
         {static_cast<std::uint32_t>(max_rows), static_cast<std::uint32_t>(arguments.heads), 1},
         NormThreads(arguments.head_dim), sizeof(NormRowsKernel<float>::Memory), arguments);
}

void MulSigmoid(DeviceStream& stream, DType dtype, std::int64_t max_rows, const MulSigmoidOnDevice& arguments) {
  if (max_rows == 0) return;
  const std::int64_t parts = CeilDivide(arguments.width, kPartElements);
  Launch(stream, Kernel::kMulSigmoid, dtype,
         {static_cast<std::uint32_t>(max_rows), static_cast<std::uint32_t>(parts), 1}, kPartThreads, 0, arguments);
}

}  // namespace loramux::gpu
