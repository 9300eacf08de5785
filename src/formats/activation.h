// The functions within a feed-forward block. Device code includes this header.
#pragma once

#include <cstdint>

namespace loramux {

// kGelu: the exact form, with erf. kClampedSwiglu: with g = min(gate, limit) and u = up between -limit and limit, the
// block multiplies g * sigmoid(alpha g) by u + 1 (gpt-oss). kRelu2: the square of kRelu.
enum class Activation : std::uint8_t { kSilu, kGeluTanh, kGelu, kRelu, kClampedSwiglu, kRelu2 };

}  // namespace loramux
