// What the launches of a step cover, so that one recording serves many steps.
#pragma once

#include <cstdint>
#include <span>

namespace loramux {

// Batches of single rows of up to this many rows are recorded.
inline constexpr std::int64_t kMaxRecordedRows = 256;

// The rows that launches over `rows` rows cover: the next power of two, and the next multiple of 64 beyond 64. The
// weights are read once whatever the number of rows, and rows beyond those that there are end at once. More rows than
// kMaxRecordedRows: as many as there are.
inline std::int64_t RowRoom(std::int64_t rows) {
  if (rows > kMaxRecordedRows) return rows;
  if (rows > 64) return (rows + 63) / 64 * 64;
  std::int64_t room = 1;
  while (room < rows) room *= 2;
  return room;
}

// As DeviceLoraView::targets has them.
using LayerTargets = std::uint32_t;

// What a step's launches cover instead of just its own rows, so that the launches of other steps are the same: a
// recorded graph of one serves all. Launches read on the device how many rows, chunks and items there are.
struct StepRoom {
  std::int64_t rows = 0, logit_rows = 0;  // at least those of the batch
  std::int32_t max_rank = 0;              // largest rank of any adapter; 0: launches nothing for adapters
  // As DeviceLoraView::targets: those that any adapter may change, the batch's own included. In host memory.
  std::span<const LayerTargets> lora_targets;

  // Whether launches run for adapters of what comes after the layers.
  bool LoraAfterLayers() const { return max_rank > 0 && lora_targets.back() != 0; }
};

}  // namespace loramux
