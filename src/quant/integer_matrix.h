// A matrix of integers with scales and zero points, whatever the format that packs them. Internal to quant.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/result.h"
#include "formats/safetensors.h"
#include "quant/stored_matrix.h"

namespace loramux {

// How an IntegerMatrix maps codes to values.
struct IntegerLayout {
  int bits = 4;                     // 4 or 8
  std::int64_t group_size = 0;      // neighbouring inputs that share a scale and a zero point; above 0
  std::vector<std::int32_t> order;  // the group of each input, if groups are not neighbours; else empty
  std::int64_t groups = 1;          // groups of an output
  bool middle_zero = false;         // 8 bits: every zero point is kQ8Zero
  std::int64_t bytes = 0;           // size in the file
};

// value = scale * (code - zero). It is kQ4 or kQ8 with the stored integers if the groups of 32 inputs fit into those of
// the file, and in 8 bits if zero is in the middle. Else it is kQ8, and ReadGroups rounds the values.
class IntegerMatrix : public StoredMatrix {
 public:
  std::int64_t bytes() const override { return layout_.bytes; }
  WeightFormat format() const override;
  std::optional<Kept> kept() const override;
  void ReadFloats(std::int64_t first, std::int64_t count, float* out) const override;
  GroupedRows ReadGroups(std::int64_t first, std::int64_t count) const override;

 protected:
  struct Affine {
    float scale = 0;
    int zero = 0;
  };

  IntegerMatrix(std::string name, std::int64_t rows, std::int64_t columns, IntegerLayout layout);

  // The integers of rows [first, first + count): [count, columns], below 2^bits.
  virtual void ReadCodes(std::int64_t first, std::int64_t count, std::uint8_t* out) const = 0;
  virtual Affine AffineOf(std::int64_t row, std::int64_t group) const = 0;

 private:
  std::int64_t GroupOf(std::int64_t column) const {
    return layout_.order.empty() ? column / layout_.group_size : layout_.order[static_cast<std::size_t>(column)];
  }

  const IntegerLayout layout_;
  bool fits_;  // each group of kWeightGroup inputs has one scale and zero point
};

// A matrix of int8 [rows, columns] with scales by output, by group or for all.
struct Int8Tensors {
  const StoredTensor* weight = nullptr;
  const StoredTensor* scales = nullptr;  // floats; element row * scale_stride + group
  const StoredTensor* zeros = nullptr;   // int8, as scales; null: all zero
  std::int64_t scale_stride = 1;
  float factor = 1;  // factor of every scale
};
// `layout.bytes` and `layout.middle_zero` are set here. The tensors outlive the matrix.
std::unique_ptr<StoredMatrix> MakeInt8Matrix(const std::string& name, std::int64_t rows, std::int64_t columns,
                                             IntegerLayout layout, const Int8Tensors& tensors);

// Element `index` of an array of int32; `data` may be unaligned.
inline std::uint32_t LoadWord(const std::byte* data, std::int64_t index) {
  std::uint32_t word = 0;
  std::memcpy(&word, data + static_cast<std::size_t>(index) * sizeof(word), sizeof(word));
  return word;
}

// Error: a scale is not a number, or larger than float16 can hold 16 times. REQUIRES: IsWeightDType(scales.dtype).
Status CheckScales(const StoredTensor& scales);
// Error: an element is not finite.
Status CheckFinite(const StoredTensor& tensor);
// The group of each input as a tensor of int32 says it: empty if that is input / group_size. Error: one is not in [0,
// groups).
Result<std::vector<std::int32_t>> ReadOrder(const StoredTensor& tensor, std::int64_t group_size, std::int64_t groups);

}  // namespace loramux
