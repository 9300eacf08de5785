// Divides the work of a batched LoRA product, both phases over all projections and segments, into tasks of equal cost.
// No list is stored in memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "kernels/lora.h"
#include "tensor/aligned_buffer.h"

namespace loramux::cpu {

// How far ahead of their use rows are prefetched. A core reads 30 GB/s or more, at a latency of up to 300 ns on a busy
// memory.
inline constexpr std::int64_t kLoraAheadBytes = 16 << 10;

// The two phases: coefficients = A x, then y += scale * B * coefficients.
enum class LoraPhase { kShrink, kExpand };

// A part of one segment of one projection: rows [begin, end) of A in shrink, columns [begin, end) of y in expand.
struct LoraPiece {
  const LoraProjection* projection = nullptr;
  const LoraSegment* segment = nullptr;
  std::int64_t rank = 0;          // computed rank: padded in kBgmv
  float* coefficients = nullptr;  // [row of the batch][stride], of the projection
  std::int64_t stride = 0;
  const std::byte* padding = nullptr;  // a row of zeros, negative where the type has them
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t first_row = 0;  // rows of the batch [first_row, end_row): the segment's, or a part of them in expand
  std::int64_t end_row = 0;

  template <typename T>
  const T* ARow(std::int64_t j) const {
    return reinterpret_cast<const T*>(j < segment->weights.rank ? segment->weights.a_rows[j] : padding);
  }
  template <typename T>
  const T* BRow(std::int64_t j) const {
    return reinterpret_cast<const T*>(j < segment->weights.rank ? segment->weights.b_rows[j] : padding);
  }
  float Factor(std::int64_t j) const {
    return j < segment->weights.rank ? segment->weights.Factor(j) : segment->weights.scale;
  }
  float* Coefficients(std::int64_t token) const { return coefficients + token * stride; }
  float* Y(std::int64_t token) const { return projection->y[token]; }
};

// A row of `elements` zeros of a type, negative where it has them, in the calling thread's scratch memory.
inline const std::byte* PaddingRow(DType dtype, std::int64_t elements) {
  thread_local AlignedBuffer<std::uint32_t> single;
  thread_local AlignedBuffer<std::uint16_t> half;
  thread_local AlignedBuffer<std::uint8_t> integers, eighth;
  const auto row = [elements](auto& buffer, auto value) {
    if (buffer.capacity() < elements) {
      buffer.Reserve(elements);
      std::fill_n(buffer.data(), elements, value);
    }
    return reinterpret_cast<const std::byte*>(buffer.data());
  };
  if (dtype == DType::kI8) return row(integers, std::uint8_t{0});
  if (dtype == DType::kF8E4M3) return row(eighth, std::uint8_t{0x80});
  return dtype == DType::kF32 ? row(single, std::uint32_t{0x80000000u}) : row(half, std::uint16_t{0x8000u});
}

// Walks through the work of one LoraMatMul call.
class LoraWork {
 public:
  explicit LoraWork(const LoraMatMulArguments& call) : call_(call) {
    if (call.variant == LoraVariant::kMbgmv) return;
    // Padding adds 0 * -0 = -0, or -0 * 0 for integers, which leaves every number unchanged, including -0.
    std::int64_t widest = call.in;
    for (const LoraProjection& projection : call.projections) widest = std::max(widest, projection.out);
    padding_single_ = PaddingRow(DType::kF32, widest);
    padding_half_ = PaddingRow(DType::kBF16, widest);
    padding_integers_ = PaddingRow(DType::kI8, widest);
    padding_eighth_ = PaddingRow(DType::kF8E4M3, widest);
  }

  const LoraMatMulArguments& call() const { return call_; }

  // The number of tasks of equal cost to divide a phase into, in a region of its own.
  std::int64_t Tasks(LoraPhase phase, int threads) const {
    // A task takes at least 2 us, about as much as waking a thread.
    return TasksOfAtLeast(20'000, phase, 1, threads);
  }
  // The number of tasks of shrink in a region that runs anyway: all threads begin with one.
  std::int64_t RidingTasks(int threads) const { return TasksOfAtLeast(20'000, LoraPhase::kShrink, threads, threads); }

  // The elements of A that a product reads.
  std::int64_t ElementsOfA() const {
    std::int64_t rows = 0;
    ForEachItem(LoraPhase::kShrink, [&rows](const LoraPiece& piece, std::int64_t, std::int64_t) {
      rows += piece.rank;
      return true;
    });
    return rows * call_.in;
  }

  // Calls fn(piece, following) for the pieces of one of `tasks` tasks; `following` is the next piece, null at the last.
  template <typename F>
  void ForEachPiece(LoraPhase phase, std::int64_t task, std::int64_t tasks, const F& fn) const {
    std::int64_t total = 0;
    ForEachItem(phase, [&total](const LoraPiece&, std::int64_t units, std::int64_t unit_cost) {
      total += units * unit_cost;
      return true;
    });
    const std::int64_t from = total * task / tasks;
    const std::int64_t to = total * (task + 1) / tasks;
    std::int64_t offset = 0;  // cost of the items before
    LoraPiece pending;        // found, not yet passed to fn
    ForEachItem(phase, [&](LoraPiece piece, std::int64_t units, std::int64_t unit_cost) {
      // A unit belongs to the task with the range that contains its start.
      const auto unit_at = [&](std::int64_t cost) {
        return std::clamp<std::int64_t>((cost - offset + unit_cost - 1) / unit_cost, 0, units);
      };
      const std::int64_t size = phase == LoraPhase::kShrink ? kUnitRows : kUnitColumns;
      const std::int64_t extent = phase == LoraPhase::kShrink ? piece.rank : piece.projection->out;
      piece.begin = (from <= offset ? 0 : unit_at(from)) * size;
      piece.end = std::min((to <= offset ? 0 : unit_at(to)) * size, extent);
      if (piece.begin < piece.end) {
        if (pending.begin < pending.end) fn(pending, static_cast<const LoraPiece*>(&piece));
        pending = piece;
      }
      offset += units * unit_cost;
      return offset < to;
    });
    if (pending.begin < pending.end) fn(pending, static_cast<const LoraPiece*>(nullptr));
  }

  // Calls fn(piece, following) for the pieces of expand in rows x columns of a matrix whose column 0 is at `y`, and
  // that the projections are columns of.
  template <typename F>
  void ForEachPieceOf(const float* y, IndexRange rows, IndexRange columns, const F& fn) const {
    LoraPiece pending;
    ForEachItem(LoraPhase::kExpand, [&](LoraPiece piece, std::int64_t, std::int64_t) {
      const std::int64_t first = piece.projection->y.data - y;
      piece.begin = std::max<std::int64_t>(columns.begin - first, 0);
      piece.end = std::min(columns.end - first, piece.projection->out);
      piece.first_row = std::max(piece.first_row, rows.begin);
      piece.end_row = std::min(piece.end_row, rows.end);
      if (piece.begin >= piece.end || piece.first_row >= piece.end_row) return true;
      if (pending.begin < pending.end) fn(pending, static_cast<const LoraPiece*>(&piece));
      pending = piece;
      return true;
    });
    if (pending.begin < pending.end) fn(pending, static_cast<const LoraPiece*>(nullptr));
  }

  // After shrink: sets the coefficients of padded rows to a zero of the other sign than the padding's, whatever x (such
  // as a NaN) made of them.
  void ClearPadding(const LoraPiece& piece) const {
    const std::int64_t begin = std::max<std::int64_t>(piece.begin, piece.segment->weights.rank);
    const float zero = piece.segment->weights.dtype == DType::kI8 ? -0.0f : 0.0f;
    for (std::int64_t i = piece.first_row; begin < piece.end && i < piece.end_row; ++i) {
      std::fill(piece.Coefficients(i) + begin, piece.Coefficients(i) + piece.end, zero);
    }
  }

 private:
  // An element of a row read for one token costs about 0.1 ns of memory time. Four tasks per thread even out errors of
  // the cost model.
  std::int64_t TasksOfAtLeast(std::int64_t elements, LoraPhase phase, std::int64_t least, int threads) const {
    std::int64_t cost = 0;
    ForEachItem(phase, [&cost](const LoraPiece&, std::int64_t units, std::int64_t unit_cost) {
      cost += units * unit_cost;
      return true;
    });
    if (cost == 0) return 0;
    return std::clamp<std::int64_t>(cost / (elements * (kReadCost + 1)), least, std::int64_t{4} * threads);
  }

  // Rows of A, and columns of y, that are not divided further. 64 columns of 16-bit elements are two cache lines.
  static constexpr std::int64_t kUnitRows = 4;
  static constexpr std::int64_t kUnitColumns = 64;
  // Reading an element costs about as much as multiplying it for eight tokens.
  static constexpr std::int64_t kReadCost = 8;

  // Calls fn(piece, units, cost of a unit) for every segment with work, until it returns false.
  template <typename F>
  void ForEachItem(LoraPhase phase, const F& fn) const {
    float* coefficients = call_.workspace;
    for (const LoraProjection& projection : call_.projections) {
      std::int64_t largest_rank = 0, largest_end = 0;
      for (const LoraSegment& segment : projection.segments) {
        if (segment.begin == segment.end) continue;
        largest_rank = std::max<std::int64_t>(largest_rank, segment.weights.rank);
        largest_end = std::max(largest_end, segment.end);
      }
      for (const LoraSegment& segment : projection.segments) {
        const std::int64_t tokens = segment.end - segment.begin;
        // kBgmv pads every segment to the largest rank. A segment of rank 0 is all padding, but costs the same.
        const std::int64_t rank = call_.variant == LoraVariant::kBgmv ? largest_rank : segment.weights.rank;
        const bool shrink = phase == LoraPhase::kShrink;
        const std::int64_t vectors = shrink || segment.weights.gains == nullptr ? 0 : 2;
        if (tokens == 0 || rank + vectors == 0) continue;
        const LoraPiece piece = {.projection = &projection,
                                 .segment = &segment,
                                 .rank = rank,
                                 .coefficients = coefficients,
                                 .stride = largest_rank,
                                 .padding = Padding(segment.weights.dtype),
                                 .first_row = segment.begin,
                                 .end_row = segment.end};
        const std::int64_t units =
            shrink ? (rank + kUnitRows - 1) / kUnitRows : (projection.out + kUnitColumns - 1) / kUnitColumns;
        const std::int64_t elements = shrink ? kUnitRows * call_.in : kUnitColumns * (rank + vectors);
        if (!fn(piece, units, elements * (kReadCost + tokens))) return;
      }
      coefficients += largest_end * largest_rank;
    }
  }

  const std::byte* Padding(DType dtype) const {
    if (HasRowFactors(dtype)) return dtype == DType::kI8 ? padding_integers_ : padding_eighth_;
    return dtype == DType::kF32 ? padding_single_ : padding_half_;
  }

  LoraMatMulArguments call_;
  const std::byte* padding_single_ = nullptr;
  const std::byte* padding_half_ = nullptr;
  const std::byte* padding_integers_ = nullptr;
  const std::byte* padding_eighth_ = nullptr;
};

}  // namespace loramux::cpu
