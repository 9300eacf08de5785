#include "gpu/emulated/warp_math.h"

#include <cstring>

namespace loramux::gpu::emulated {
namespace {

// Lanes with partners 16, 8, 4, 2 and 1 apart, as ShuffleXor: all get the same bits, so one half suffices.
template <typename T, typename Combine>
void Reduce(Slots slots, const Combine& combine) {
  T values[32];
  for (int lane = 0; lane < 32; ++lane) std::memcpy(&values[lane], slots[lane], sizeof(T));
  for (int half = 16; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) values[lane] = combine(values[lane], values[lane + half]);
  }
  std::memcpy(slots[0], &values[0], sizeof(T));
}

// A sum of a row's 8 columns: two vectors of every processor.
using Columns = float __attribute__((vector_size(32)));

// PTX's fragments of m16n8k16. Lane = 4 g + t. Word w of a: row g + 8 (w % 2), columns 2t + 8 (w / 2) and the next.
// Word w of b: rows 2t + 8 w and the next, column g. Word w of d: row g + 8 (w / 2), column 2t + w % 2. Sums are in
// ascending k.
template <typename T>
void Multiply(Slots slots) {
  std::uint32_t a[16][8], b[8][8];  // pairs of k: those of a row of a, those of a column of b
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int w = 0; w < 4; ++w) a[g + w % 2 * 8][t + w / 2 * 4] = slots[lane][w];
    for (int w = 0; w < 2; ++w) b[t + w * 4][g] = slots[lane][4 + w];
  }
  alignas(32) float a_low[16][8], a_high[16][8], b_low[8][8], b_high[8][8];
  for (int row = 0; row < 16; ++row) {
    for (int i = 0; i < 8; ++i) {
      a_low[row][i] = ToFloat(T{static_cast<std::uint16_t>(a[row][i])});
      a_high[row][i] = ToFloat(T{static_cast<std::uint16_t>(a[row][i] >> 16)});
    }
  }
  for (int k = 0; k < 8; ++k) {
    for (int i = 0; i < 8; ++i) {
      b_low[k][i] = ToFloat(T{static_cast<std::uint16_t>(b[k][i])});
      b_high[k][i] = ToFloat(T{static_cast<std::uint16_t>(b[k][i] >> 16)});
    }
  }
  for (int row = 0; row < 16; ++row) {
    Columns sum = {};
    for (int k = 0; k < 8; ++k) {
      Columns low, high;
      std::memcpy(&low, b_low[k], sizeof(low));
      std::memcpy(&high, b_high[k], sizeof(high));
      sum += a_low[row][k] * low;
      sum += a_high[row][k] * high;
    }
    for (int t = 0; t < 4; ++t) {
      slots[row % 8 * 4 + t][row / 8 * 2] = AsBits(sum[2 * t]);
      slots[row % 8 * 4 + t][row / 8 * 2 + 1] = AsBits(sum[2 * t + 1]);
    }
  }
}

// ldmatrix.x4: lane 8 m + i brought the address of row i (16 bytes) of matrix m. Lane 4 g + t takes of each matrix the
// elements 2t and 2t + 1 of row g; transposed, of column g.
void LoadMatrixWords(Slots slots, bool transposed) {
  std::uint16_t matrices[4][8][8];
  for (int lane = 0; lane < 32; ++lane) {
    const std::uintptr_t address = static_cast<std::uintptr_t>(slots[lane][1]) << 32 | slots[lane][0];
    std::memcpy(matrices[lane / 8][lane % 8], reinterpret_cast<const void*>(address), 16);
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int m = 0; m < 4; ++m) {
      const std::uint32_t low = transposed ? matrices[m][2 * t][g] : matrices[m][g][2 * t];
      const std::uint32_t high = transposed ? matrices[m][2 * t + 1][g] : matrices[m][g][2 * t + 1];
      slots[lane][m] = low | high << 16;
    }
  }
}

}  // namespace

const char* NameOf(Meeting meeting) {
  switch (meeting) {
    case Meeting::kNone:
      break;
    case Meeting::kBlock:
      return "SyncBlock";
    case Meeting::kWarp:
      return "SyncWarp";
    case Meeting::kShuffle:
      return "Shuffle";
    case Meeting::kSum:
    case Meeting::kSumDouble:
    case Meeting::kSumInteger:
      return "SumWarp";
    case Meeting::kMax:
    case Meeting::kMaxWide:
      return "MaxWarp";
    case Meeting::kMultiplyBf16:
    case Meeting::kMultiplyHalf:
      return "MultiplyTile";
    case Meeting::kMatrices:
      return "LoadMatrices";
    case Meeting::kMatricesTransposed:
      return "LoadMatricesTransposed";
  }
  return "nothing";
}

void MeetingWork(Meeting meeting, Slots slots) {
  switch (meeting) {
    case Meeting::kNone:
    case Meeting::kBlock:
    case Meeting::kWarp:
    case Meeting::kShuffle:
      break;
    case Meeting::kSum:
      Reduce<float>(slots, [](float a, float b) { return a + b; });
      break;
    case Meeting::kMax:
      Reduce<float>(slots, [](float a, float b) { return Max(a, b); });
      break;
    case Meeting::kSumDouble:
      Reduce<double>(slots, [](double a, double b) { return a + b; });
      break;
    case Meeting::kSumInteger:
      Reduce<std::uint32_t>(slots, [](std::uint32_t a, std::uint32_t b) { return a + b; });
      break;
    case Meeting::kMaxWide:
      Reduce<std::uint64_t>(slots, [](std::uint64_t a, std::uint64_t b) { return a > b ? a : b; });
      break;
    case Meeting::kMultiplyBf16:
      Multiply<Bf16>(slots);
      break;
    case Meeting::kMultiplyHalf:
      Multiply<Half>(slots);
      break;
    case Meeting::kMatrices:
      LoadMatrixWords(slots, false);
      break;
    case Meeting::kMatricesTransposed:
      LoadMatrixWords(slots, true);
      break;
  }
}

}  // namespace loramux::gpu::emulated
