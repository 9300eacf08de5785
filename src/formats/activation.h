// The functions within a feed-forward block. Device code includes this header.
#pragma once

#include <cstdint>

namespace loramux {

// kGelu: the exact form, with erf.
enum class Activation : std::uint8_t { kSilu, kGeluTanh, kGelu, kRelu };

}  // namespace loramux
