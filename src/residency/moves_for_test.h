// What a list of moves does, for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "residency/moves.h"

namespace loramux {

// The adapters that come to the device (leave the tier), in the order of their moves, by generation.
inline std::vector<std::uint32_t> Loaded(const Moves& moves) {
  std::vector<std::uint32_t> adapters;
  for (const Move& move : moves) {
    if (move.is_load()) adapters.push_back(move.item.adapter.value);
  }
  return adapters;
}
inline std::vector<std::uint32_t> Leaving(const Moves& moves, Tier tier) {
  std::vector<std::uint32_t> adapters;
  for (const Move& move : moves) {
    if (move.item.is_adapter() && move.leaves(tier)) adapters.push_back(move.item.adapter.value);
  }
  return adapters;
}

}  // namespace loramux
