// The kernels of assist.h.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/assist.h"

namespace loramux::gpu {

inline constexpr int kAssistThreads = 256;
// Floats of an answer row that one block of AddAnswers adds.
inline constexpr std::int64_t kAssistPart = 4096;

// What a block of SendActivations or AddAnswers must know of its piece.
struct AssistPieceWork {
  const AssistPiece* piece;
  AssistWords* words;
  std::uint32_t first_ticket;
};

// Whether the processor computes the piece of this block in the layer. The same for all threads of the block.
LORAMUX_DEVICE bool HostComputes(const AssistWork& work, std::int32_t layer, std::uint32_t mask,
                                 AssistPieceWork& mine) {
  if (static_cast<std::int32_t>(BlockX()) >= Load(work.piece_count)) return false;
  mine.piece = work.pieces + BlockX();
  const std::int32_t segment = Load(&mine.piece->segment);
  if (Load(work.gates + segment) != kAssistOnHost) return false;
  const std::uint8_t* targets = Load(&work.segments[segment].targets);
  if ((Load(targets + layer) & mask) == 0) return false;
  mine.words = Load(&mine.piece->words);
  mine.first_ticket = Load(work.first_ticket);
  return true;
}

// One warp for 32 segments.
template <typename T>
struct DecideLayerKernel {
  using Arguments = DecideLayerArguments;
  static constexpr int kThreads = 32, kMinBlocks = 1;
  LORAMUX_DEVICE static void Run(const Arguments& a) {
    const std::int64_t segment = std::int64_t{BlockX()} * kThreads + ThreadIndex();
    if (segment >= Load(a.work.segment_count)) return;
    const std::uint32_t* arrived = Load(&a.work.segments[segment].arrived);
    const bool there = arrived != nullptr && LoadFlag(arrived) >= a.needed;
    Store(a.work.gates + segment, there ? std::uint32_t{kAssistOnDevice} : std::uint32_t{kAssistOnHost});
  }
};

// One block a piece.
template <typename T>
struct SendActivationsKernel {
  using Arguments = SendActivationsArguments;
  static constexpr int kThreads = kAssistThreads, kMinBlocks = 1;

  struct Memory {
    std::uint32_t failed;
  };

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    AssistPieceWork mine;
    if (!HostComputes(a.work, a.layer, a.mask, mine)) return;
    Memory& memory = Shared<Memory>();
    if (ThreadIndex() == 0) memory.failed = LoadFlag(&mine.words->failed);
    SyncBlock();
    if (memory.failed == mine.first_ticket) return;
    if (a.x != nullptr) Copy(a, mine);
    SyncBlock();
    if (ThreadIndex() == 0) StoreFlag(&mine.words->request, mine.first_ticket + a.group);
  }

 private:
  LORAMUX_DEVICE static void Copy(const Arguments& a, const AssistPieceWork& mine) {
    const std::int32_t rows = Load(&mine.piece->rows);
    const T* from = static_cast<const T*>(a.x) + Load(&mine.piece->first_row) * a.x_stride;
    T* to = static_cast<T*>(Load(&mine.piece->x));
    constexpr std::int64_t kVector = 16 / sizeof(T);
    const bool whole =
        (a.in % kVector) == 0 && (a.x_stride % kVector) == 0 && reinterpret_cast<std::uint64_t>(a.x) % 16 == 0;
    if (whole) {
      const std::int64_t vectors = a.in / kVector;
      for (std::int64_t i = ThreadIndex(); i < rows * vectors; i += kThreads) {
        const std::int64_t row = i / vectors, column = i % vectors;
        Store(reinterpret_cast<Vec4*>(to) + i, Load(reinterpret_cast<const Vec4*>(from + row * a.x_stride) + column));
      }
    } else {
      for (std::int64_t i = ThreadIndex(); i < rows * a.in; i += kThreads)
        Store(to + i, Load(from + i / a.in * a.x_stride + i % a.in));
    }
  }
};

// One block a piece (x) and part of a row of answers (y).
template <typename T>
struct AddAnswersKernel {
  using Arguments = AddAnswersArguments;
  static constexpr int kThreads = kAssistThreads, kMinBlocks = 1;

  struct Memory {
    bool answered;
  };

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    AssistPieceWork mine;
    if (!HostComputes(a.work, a.layer, a.mask, mine)) return;
    Memory& memory = Shared<Memory>();
    if (ThreadIndex() == 0) memory.answered = AwaitAnswer(a, mine);
    SyncBlock();
    if (!memory.answered) return;
    const std::int32_t rows = Load(&mine.piece->rows), first_row = Load(&mine.piece->first_row);
    const float* answer = Load(&mine.piece->answer);
    const std::int64_t begin = BlockY() * kAssistPart, end = begin + kAssistPart;
    for (std::int32_t slice = 0; slice < a.slices; ++slice) {
      const std::int64_t first = a.first[slice], last = first + a.out[slice];
      const AssistWords& words = *mine.words;
      const std::int32_t index = a.scale[slice];
      const Outputs outputs = {Load(&words.scale[index]), Load(&words.gains[index]), Load(&words.shifts[index])};
      const std::int64_t from = begin > first ? begin : first, to = end < last ? end : last;
      if ((outputs.scale == 0 && outputs.gains == nullptr) || from >= to) continue;
      AddSlice(answer + first, a.width, a.y[slice] + first_row * a.y_stride[slice], a.y_stride[slice], rows, outputs,
               from - first, to - first);
    }
  }

 private:
  // By one thread. After a failure in this step it does not wait again.
  LORAMUX_DEVICE static bool AwaitAnswer(const Arguments& a, const AssistPieceWork& mine) {
    if (LoadFlag(&mine.words->failed) == mine.first_ticket) return false;
    const std::uint32_t ticket = mine.first_ticket + a.group;
    if (WaitFlag(&mine.words->answered, ticket, ~kAssistNoAnswer, a.work.timeout_ns) &&
        LoadFlag(&mine.words->answered) == ticket)
      return true;
    StoreFlag(&mine.words->failed, mine.first_ticket);
    return false;
  }

  // What makes a slice's outputs of the answer and of what is there, `y`. Without scale the answer is arbitrary.
  struct Outputs {
    float scale;
    const float *gains, *shifts;
    LORAMUX_DEVICE float Of(std::int64_t o, float sum, float y) const {
      const float whole = scale == 0 ? y : Fma(scale, sum, y);
      return gains == nullptr ? whole : Fma(Load(gains + o), whole, Load(shifts + o));
    }
  };

  // Columns [from, to) of all rows, four at a time; `from` is a multiple of 4.
  LORAMUX_DEVICE static void AddSlice(const float* answer, std::int64_t width, float* y, std::int64_t y_stride,
                                      std::int32_t rows, const Outputs& outputs, std::int64_t from, std::int64_t to) {
    const std::int64_t groups = (to - from + 3) / 4;
    for (std::int64_t i = ThreadIndex(); i < rows * groups; i += kThreads) {
      const std::int64_t row = i / groups, column = from + i % groups * 4;
      const Vec4 bits = Load(reinterpret_cast<const Vec4*>(answer + row * width + column));
      const float sums[4] = {AsFloat(bits.x), AsFloat(bits.y), AsFloat(bits.z), AsFloat(bits.w)};
      float* at = y + row * y_stride + column;
      if (column + 4 <= to && reinterpret_cast<std::uint64_t>(at) % 16 == 0) {
        Vec4* whole = reinterpret_cast<Vec4*>(at);
        const Vec4 old = Load(whole);
        Store(whole, Vec4{AsBits(outputs.Of(column, sums[0], AsFloat(old.x))),
                          AsBits(outputs.Of(column + 1, sums[1], AsFloat(old.y))),
                          AsBits(outputs.Of(column + 2, sums[2], AsFloat(old.z))),
                          AsBits(outputs.Of(column + 3, sums[3], AsFloat(old.w)))});
        continue;
      }
      LORAMUX_UNROLL
      for (int e = 0; e < 4; ++e)
        if (column + e < to) Store(at + e, outputs.Of(column + e, sums[e], Load(at + e)));
    }
  }
};

// One thread of one warp.
template <typename T>
struct PublishLayersKernel {
  using Arguments = PublishLayersArguments;
  static constexpr int kThreads = 32, kMinBlocks = 1;
  LORAMUX_DEVICE static void Run(const Arguments& a) {
    if (ThreadIndex() == 0) StoreFlag(a.arrived, a.layers);
  }
};

}  // namespace loramux::gpu
