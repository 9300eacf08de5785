// Counting pieces.
#pragma once

#include <cstdint>

namespace loramux {

// How many pieces of `size` hold `total`. REQUIRES: total >= 0, size > 0.
constexpr std::int64_t CeilDivide(std::int64_t total, std::int64_t size) { return (total + size - 1) / size; }

}  // namespace loramux
