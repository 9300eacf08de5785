// How attention reads keys, values and queries: from pages and rows to tiles in shared memory.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/attention.h"
#include "gpu/kernels/attention_extents.h"

namespace loramux::gpu {

// Positions [begin, end) of one head of one sequence, not empty.
struct PositionRange {
  const std::byte *keys, *values;  // where the head begins in page 0
  const std::uint32_t* table;      // pages of positions [0, T), [T, 2T), ...
  std::uint32_t page_stride;
  std::int32_t page_shift, row_bytes, begin, end;

  // A position's row of `base`, which is keys or values.
  LORAMUX_DEVICE const std::byte* Row(const std::byte* base, std::int32_t position) const {
    const std::int32_t slot = position & ((1 << page_shift) - 1);
    return base + static_cast<std::uint64_t>(Load(table + (position >> page_shift))) * page_stride + slot * row_bytes;
  }
};

template <typename T>
LORAMUX_DEVICE PositionRange RangeOf(const AttentionArguments& arguments, std::int32_t first_page, int kv_head,
                                     std::int32_t begin, std::int32_t end) {
  const PagesOnDevice& pages = arguments.pages;
  PositionRange range;
  range.row_bytes = pages.head_dim * static_cast<std::int32_t>(sizeof(T));
  range.page_shift = 0;
  while ((1 << range.page_shift) < pages.page_tokens) ++range.page_shift;
  const std::int64_t head_bytes = static_cast<std::int64_t>(range.row_bytes) * pages.page_tokens;
  range.keys = pages.base + arguments.layer_offset + kv_head * head_bytes;
  range.values = range.keys + pages.num_kv_heads * head_bytes;
  range.table = arguments.page_tables + first_page;
  range.page_stride = static_cast<std::uint32_t>(pages.page_stride);
  range.begin = begin;
  range.end = end;
  return range;
}

// A row of queries: what it sees, and where it comes from and goes to.
struct QueryRow {
  std::int32_t first, last;  // positions; last < 0: the row does not exist
  std::int32_t row, head;
};

// The first position that a row at `position` sees.
LORAMUX_DEVICE std::int32_t FirstVisible(std::int32_t position, std::int32_t window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

// 16 bytes from `from` of which `bytes` exist; the rest is 0. For rows that are not made of whole 16 bytes.
LORAMUX_DEVICE Vec4 LoadWords(const std::byte* from, std::int32_t bytes) {
  Vec4 words = {0, 0, 0, 0};
  const auto* word = reinterpret_cast<const std::uint32_t*>(from);
  if (bytes > 0) words.x = Load(word);
  if (bytes > 4) words.y = Load(word + 1);
  if (bytes > 8) words.z = Load(word + 2);
  if (bytes > 12) words.w = Load(word + 3);
  return words;
}

// A row of a tile in shared memory.
template <typename T, int kDim>
using TileRow = T[ExtentsOf<T, kDim>::kStride];

// Starts copying positions [first, first + kTile) to shared memory; zeros where the range has none.
template <typename T, int kDim, int kThreads>
LORAMUX_DEVICE void LoadTile(TileRow<T, kDim>* tile, const PositionRange& range, const std::byte* base,
                             std::int32_t first, int thread) {
  constexpr int kPieceElements = 16 / static_cast<int>(sizeof(T));
  constexpr int kPieces = kDim / kPieceElements;
  constexpr int kRounds = ExtentsOf<T, kDim>::kTile * kPieces / kThreads;
  constexpr int kWanted = kDim > 128 ? 4 : 8;  // wide rows leave fewer registers
  constexpr int kAtOnce = kRounds % kWanted == 0 ? kWanted : kRounds;
  static_assert(kRounds * kThreads == ExtentsOf<T, kDim>::kTile * kPieces && kRounds % kAtOnce == 0);
  const bool whole = range.row_bytes % 16 == 0;
  const int rounds = NoEarlier(kRounds);
  for (int start = 0; start < rounds; start += kAtOnce) {
    const int first_piece = NoEarlier(start * kThreads + thread);
    // First the addresses of all, so that their pages are looked up at the same time.
    const std::byte* from[kAtOnce];
    std::int32_t bytes[kAtOnce];  // bytes that exist; 16 are enough
    LORAMUX_UNROLL
    for (int round = 0; round < kAtOnce; ++round) {
      const int i = round * kThreads + first_piece;
      const std::int32_t position = first + i / kPieces, offset = i % kPieces * 16;
      // Without a branch: an address of the range, even if nothing is read there.
      const std::int32_t there = position < range.begin ? range.begin : position < range.end ? position : range.end - 1;
      from[round] = range.Row(base, there) + offset;
      bytes[round] = there == position ? range.row_bytes - offset : 0;
    }
    LORAMUX_UNROLL
    for (int round = 0; round < kAtOnce; ++round) {
      const int i = round * kThreads + first_piece;
      T* to = &tile[i / kPieces][i % kPieces * kPieceElements];
      if (whole) {
        CopyAsync16(to, from[round], bytes[round] > 0);
      } else {
        *reinterpret_cast<Vec4*>(to) = LoadWords(from[round], bytes[round]);
      }
    }
  }
}

// Rounds one row of q to T.
template <typename T, int kDim>
LORAMUX_DEVICE void LoadQuery(T* to, const AttentionArguments& arguments, const QueryRow& query) {
  const std::int32_t head_dim = arguments.pages.head_dim;
  const std::int32_t head_stride = arguments.q_head_stride == 0 ? head_dim : arguments.q_head_stride;
  const float* from = arguments.q + query.row * arguments.q_stride + query.head * head_stride;
  for (int d = 2 * static_cast<int>(Lane()); d < kDim; d += 64) {
    const bool valid = query.last >= 0 && d < head_dim;
    const Pair pair = valid ? Load(reinterpret_cast<const Pair*>(from + d)) : Pair{0, 0};
    to[d] = FromFloat<T>(pair.low);
    to[d + 1] = FromFloat<T>(pair.high);
  }
}

}  // namespace loramux::gpu
