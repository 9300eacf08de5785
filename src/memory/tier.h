// The tiers in which adapters, keys and values lie, and sets of pages in them.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/page_arena.h"

namespace loramux {

// Where data lies. On the disk are only adapters: their own files, without pages.
enum class Tier : std::uint8_t { kDisk, kHost, kDevice };

// Pages of one tier, by their index in that tier's pool, in the order of their content. Says nothing of addresses, so
// that it means the same to a thread that copies and to a device's copy engine. Empty for kDisk.
struct PageSet {
  Tier tier = Tier::kHost;
  std::vector<std::uint32_t> pages;
};

// The pools' memory by tier; a tier without a pool has no base. The executor and the
// transfers read and write bytes by it. Not owning.
struct TierMemory {
  PageArena host, device;

  // REQUIRES: `tier` is kHost or kDevice.
  const PageArena& Of(Tier tier) const { return tier == Tier::kHost ? host : device; }
};

}  // namespace loramux
