// The pages of a pool as kernels and copies see them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace loramux {

// Memory in which page p starts at base + p * page_stride bytes. The addresses are those of the memory's own device.
// Not owning.
struct PageArena {
  std::byte* base = nullptr;
  std::size_t page_stride = 0;

  std::byte* Page(std::uint32_t page) const { return base + page * page_stride; }
};

}  // namespace loramux
