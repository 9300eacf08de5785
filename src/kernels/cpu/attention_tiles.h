// Divides a step's attention into tiles. A tile is a piece of work for one thread; its rows share the loads of one
// key-value head.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/attention.h"

namespace loramux::cpu {

// Rows are pairs (token of the sequence, query head of the key-value head's group), in token-major order. A tile has up
// to kAttentionTileRows of them, starting with pair `first`. `group`: query heads per key-value head.
struct AttentionTile {
  const AttentionSequence* sequence = nullptr;
  std::int64_t kv_head = 0;
  std::int64_t group = 1;
  std::int64_t first = 0;
  std::int64_t rows = 0;

  // Token and query head of a row of the tile.
  std::int64_t Token(std::int64_t row) const { return (first + row) / group; }
  std::int64_t Head(std::int64_t row) const { return kv_head * group + (first + row) % group; }
};

// The tiles of a step, sequence by sequence and head by head.
class AttentionTiles {
 public:
  AttentionTiles(std::span<const AttentionSequence> sequences, std::int64_t num_kv_heads, std::int64_t group)
      : sequences_(sequences), num_kv_heads_(num_kv_heads), group_(group) {}

  std::int64_t Count() const {
    std::int64_t count = 0;
    for (const AttentionSequence& sequence : sequences_) count += num_kv_heads_ * PerHead(sequence);
    return count;
  }

  // Calls fn(tile) for the tiles with index in [begin, end).
  template <typename F>
  void ForEach(std::int64_t begin, std::int64_t end, const F& fn) const {
    std::int64_t offset = 0;  // index of the sequence's first tile
    for (const AttentionSequence& sequence : sequences_) {
      const std::int64_t per_head = PerHead(sequence);
      const std::int64_t stop = std::min(end - offset, num_kv_heads_ * per_head);
      for (std::int64_t i = std::max<std::int64_t>(0, begin - offset); i < stop; ++i) {
        const std::int64_t first = i % per_head * kAttentionTileRows;
        fn(AttentionTile{&sequence, i / per_head, group_, first,
                         std::min(kAttentionTileRows, sequence.num_tokens * group_ - first)});
      }
      offset += num_kv_heads_ * per_head;
      if (offset >= end) return;
    }
  }

 private:
  std::int64_t PerHead(const AttentionSequence& sequence) const {
    return (sequence.num_tokens * group_ + kAttentionTileRows - 1) / kAttentionTileRows;
  }

  std::span<const AttentionSequence> sequences_;
  std::int64_t num_kv_heads_;
  std::int64_t group_;
};

}  // namespace loramux::cpu
