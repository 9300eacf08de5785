#include "model/alibi.h"

#include <bit>
#include <cmath>
#include <cstdint>

#include "tensor/half_float.h"

namespace loramux {
namespace {

// 2^(-8 / heads), as float32 has it, to the power of `exponent`.
double SlopeOf(std::int64_t heads, std::int64_t exponent) {
  return std::pow(static_cast<double>(static_cast<float>(std::exp2(-8.0 / static_cast<double>(heads)))),
                  static_cast<double>(exponent));
}

}  // namespace

std::vector<float> AlibiSlopes(const ModelConfig& config) {
  std::vector<float> slopes;
  if (config.alibi == Alibi::kNone) return slopes;
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(config.num_heads)));
  for (std::int64_t head = 0; head < config.num_heads; ++head) {
    const bool of_power = head < power;
    const double slope = of_power ? SlopeOf(power, head + 1) : SlopeOf(2 * power, 2 * (head - power) + 1);
    const bool rounds = config.alibi == Alibi::kBf16;
    const auto whole = static_cast<float>(slope);
    slopes.push_back(rounds ? BF16ToF32(F32ToBF16(whole)) : whole / config.AttentionScale());
  }
  return slopes;
}

}  // namespace loramux
