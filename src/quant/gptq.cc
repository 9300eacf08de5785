#include "quant/gptq.h"

#include <utility>

#include "base/message.h"
#include "quant/integer_matrix.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

struct GptqTensors {
  const StoredTensor *weight = nullptr, *zeros = nullptr, *scales = nullptr;
  int bits = 4, zero_offset = 1;
};

int ZeroOf(const GptqTensors& t, std::int64_t rows, std::int64_t row, std::int64_t group) {
  const int per_word = 32 / t.bits;
  const std::uint32_t word = LoadWord(t.zeros->data.data(), group * (rows / per_word) + row / per_word);
  // A zero point of 0 is stored as -1 where it is stored less one, so the sum wraps.
  const auto stored = static_cast<int>(word >> (t.bits * (row % per_word)));
  return (stored + t.zero_offset) & ((1 << t.bits) - 1);
}

class GptqMatrix : public IntegerMatrix {
 public:
  GptqMatrix(const std::string& name, std::int64_t rows, std::int64_t columns, IntegerLayout layout,
             const GptqTensors& tensors)
      : IntegerMatrix(name, rows, columns, std::move(layout)), tensors_(tensors) {}

 protected:
  // Words of neighbouring outputs lie side by side.
  void ReadCodes(std::int64_t first, std::int64_t count, std::uint8_t* out) const override {
    const int bits = tensors_.bits, per_word = 32 / bits;
    const std::uint32_t mask = (1u << bits) - 1;
    for (std::int64_t begin = 0; begin < columns(); begin += per_word) {
      for (std::int64_t r = 0; r < count; ++r) {
        const std::uint32_t word = LoadWord(tensors_.weight->data.data(), begin / per_word * rows() + first + r);
        std::uint8_t* const to = out + r * columns() + begin;
        for (int i = 0; i < per_word; ++i) to[i] = static_cast<std::uint8_t>(word >> (bits * i) & mask);
      }
    }
  }

  Affine AffineOf(std::int64_t row, std::int64_t group) const override {
    return {LoadAsF32(tensors_.scales->dtype, tensors_.scales->data.data(), group * rows() + row),
            ZeroOf(tensors_, rows(), row, group)};
  }

 private:
  const GptqTensors tensors_;
};

bool ZerosAre(int zero, const GptqTensors& tensors, std::int64_t rows, std::int64_t groups) {
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t row = 0; row < rows; ++row) {
      if (ZeroOf(tensors, rows, row, group) != zero) return false;
    }
  }
  return true;
}

// A symmetric model has its zero points in the middle by definition. Programs differ in whether they store them less
// one, whatever the format's name says; so what is stored decides.
Status ChooseOffset(GptqTensors& tensors, std::int64_t rows, std::int64_t groups) {
  const int middle = 1 << (tensors.bits - 1);
  for (const int offset : {tensors.zero_offset, 1 - tensors.zero_offset}) {
    tensors.zero_offset = offset;
    if (ZerosAre(middle, tensors, rows, groups)) return Ok{};
  }
  return InvalidArgument("tensor " + Quote(tensors.zeros->name) + ": quantization_config says sym: true, so all zero " +
                             "points are expected to be stored as " + std::to_string(middle - 1) + ", or all as " +
                             std::to_string(middle) + "; found others",
                         tensors.zeros->name);
}

}  // namespace

Result<std::shared_ptr<const StoredMatrix>> FindGptqMatrix(TensorFinder& tensors, const QuantizationConfig& config,
                                                           const std::string& name, std::int64_t rows,
                                                           std::int64_t columns) {
  std::shared_ptr<const StoredMatrix> matrix;
  const std::string weight = name + ".qweight";
  if (tensors.Peek(weight) == nullptr) return matrix;
  IntegerLayout layout;
  layout.bits = config.scheme.bits;
  layout.group_size = config.scheme.group_size > 0 ? config.scheme.group_size : columns;
  layout.groups = (columns + layout.group_size - 1) / layout.group_size;
  const std::int64_t per_word = 32 / layout.bits;
  if (rows % per_word != 0 || columns % per_word != 0) {
    return InvalidArgument("tensor " + Quote(weight) + ": expected extents that are multiples of " +
                               std::to_string(per_word) + ", but config.json asks for a matrix of " +
                               ShapeToString(TensorFinder::Shape{rows, columns}),
                           weight);
  }
  GptqTensors t;
  t.bits = layout.bits;
  t.zero_offset = config.zero_offset;
  ASSIGN_OR_RETURN(t.weight, tensors.RequireTyped(weight, {{columns / per_word, rows}}, {DType::kI32}));
  ASSIGN_OR_RETURN(t.zeros, tensors.RequireTyped(name + ".qzeros", {{layout.groups, rows / per_word}}, {DType::kI32}));
  ASSIGN_OR_RETURN(t.scales, tensors.RequireTyped(name + ".scales", {{layout.groups, rows}}, kFloatTypes));
  RETURN_IF_ERROR(CheckScales(*t.scales));
  ASSIGN_OR_RETURN(const StoredTensor* order, tensors.FindTyped(name + ".g_idx", {{columns}}, {DType::kI32}));
  if (order != nullptr) {
    ASSIGN_OR_RETURN(layout.order, ReadOrder(*order, layout.group_size, layout.groups));
  }
  if (config.says_symmetric) RETURN_IF_ERROR(ChooseOffset(t, rows, layout.groups));
  layout.middle_zero = layout.bits == 8 && ZerosAre(kQ8Zero, t, rows, layout.groups);
  layout.bytes = static_cast<std::int64_t>(t.weight->data.size() + t.zeros->data.size() + t.scales->data.size());
  matrix = std::make_shared<GptqMatrix>(weight, rows, columns, std::move(layout), t);
  return matrix;
}

}  // namespace loramux
