#include "schedule/plan/step_plan.h"

#include <algorithm>
#include <array>

namespace loramux {

// A radix sort by bytes of the generation. It takes two passes for up to 65,535 generations, where a comparison sort
// takes about eight.
void SortByAdapter(std::vector<PlannedChunk>& chunks, std::vector<PlannedChunk>& buffer) {
  std::uint32_t used_bits = 0;
  for (PlannedChunk& chunk : chunks) {
    used_bits |= chunk.sort_key = chunk.by_base ? kBaseModel.value : chunk.request->adapter.value;
  }
  buffer.resize(chunks.size());
  for (int shift = 0; shift < 32 && (used_bits >> shift) != 0; shift += 8) {
    const auto digit = [shift](const PlannedChunk& chunk) { return (chunk.sort_key >> shift) & 255u; };
    const std::uint32_t digits = std::min(255u, used_bits >> shift) + 1;  // the highest byte often has few values
    std::array<std::uint32_t, 257> begin;
    std::fill_n(begin.begin(), digits + 1, 0u);
    for (const PlannedChunk& chunk : chunks) ++begin[digit(chunk) + 1];
    for (std::size_t i = 1; i < digits; ++i) begin[i] += begin[i - 1];
    for (const PlannedChunk& chunk : chunks) buffer[begin[digit(chunk)]++] = chunk;
    chunks.swap(buffer);
  }
}

}  // namespace loramux
