// What a router assumes of servers that have no profile, and of requests about which it knows little.
#pragma once

#include <cstdint>
#include <memory>

#include "costs/performance_model.h"

namespace loramux {

// A rough model of one server: an 8B model with 16-bit weights and grouped keys and values on an accelerator with 80
// GB, 2 TB/s and 312 TFLOPS, of which programs reach the usual shares. It only has to rank servers. A fleet of other
// machines keeps the order of most choices, because all servers are wrong by the same factor; a fleet whose loads
// from disk are much slower, or whose prompts are much cheaper, should give the router a profile.
std::shared_ptr<const PerformanceModel> DefaultPerformanceModel();

inline constexpr std::int32_t kAssumedRank = 16;                 // rank of an adapter that no server lists
inline constexpr std::int64_t kAssumedBytesPerRank = 1'700'000;  // q, k, v and o of that model
inline constexpr std::int64_t kAssumedOutputTokens = 128;        // tokens of an answer without a bound

}  // namespace loramux
