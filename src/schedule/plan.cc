#include "schedule/plan.h"

#include <algorithm>
#include <array>

namespace loramux {

// A radix sort by bytes of the generation: two passes for up to 65,535 generations, where comparing would take eight.
void SortByAdapter(std::vector<PlannedChunk>& chunks, std::vector<PlannedChunk>& buffer) {
  std::uint32_t used_bits = 0;
  for (const PlannedChunk& chunk : chunks) used_bits |= chunk.request->adapter.value;
  buffer.resize(chunks.size());
  for (int shift = 0; shift < 32 && (used_bits >> shift) != 0; shift += 8) {
    const auto digit = [shift](const PlannedChunk& chunk) { return (chunk.request->adapter.value >> shift) & 255u; };
    std::array<std::uint32_t, 257> begin = {};
    for (const PlannedChunk& chunk : chunks) ++begin[digit(chunk) + 1];
    for (std::size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
    for (const PlannedChunk& chunk : chunks) buffer[begin[digit(chunk)]++] = chunk;
    chunks.swap(buffer);
  }
}

}  // namespace loramux
