#include "quant/awq.h"

#include <array>
#include <utility>

#include "base/message.h"
#include "quant/integer_matrix.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

constexpr std::int64_t kOutputsOfWord = 8;

// Where an output lies in its word.
int ShiftOf(std::int64_t output) {
  constexpr std::array<int, kOutputsOfWord> kPlace = {0, 4, 1, 5, 2, 6, 3, 7};
  return 4 * kPlace[static_cast<std::size_t>(output % kOutputsOfWord)];
}

struct AwqTensors {
  const StoredTensor *weight = nullptr, *zeros = nullptr, *scales = nullptr;
};

class AwqMatrix : public IntegerMatrix {
 public:
  AwqMatrix(const std::string& name, std::int64_t rows, std::int64_t columns, IntegerLayout layout,
            const AwqTensors& tensors)
      : IntegerMatrix(name, rows, columns, std::move(layout)), tensors_(tensors) {}

 protected:
  void ReadCodes(std::int64_t first, std::int64_t count, std::uint8_t* out) const override {
    for (std::int64_t c = 0; c < columns(); ++c) {
      for (std::int64_t r = 0; r < count; ++r) out[r * columns() + c] = Code(*tensors_.weight, c, first + r);
    }
  }

  Affine AffineOf(std::int64_t row, std::int64_t group) const override {
    return {LoadAsF32(tensors_.scales->dtype, tensors_.scales->data.data(), group * rows() + row),
            Code(*tensors_.zeros, group, row)};
  }

 private:
  // The code of output `output` in line `line` of a packed tensor.
  std::uint8_t Code(const StoredTensor& tensor, std::int64_t line, std::int64_t output) const {
    const std::int64_t words = rows() / kOutputsOfWord;
    const std::uint32_t word = LoadWord(tensor.data.data(), line * words + output / kOutputsOfWord);
    return static_cast<std::uint8_t>(word >> ShiftOf(output) & 0xf);
  }

  const AwqTensors tensors_;
};

}  // namespace

Result<std::shared_ptr<const StoredMatrix>> FindAwqMatrix(TensorFinder& tensors, const QuantizationConfig& config,
                                                          const std::string& name, std::int64_t rows,
                                                          std::int64_t columns) {
  std::shared_ptr<const StoredMatrix> matrix;
  const std::string weight = name + ".qweight";
  if (tensors.Peek(weight) == nullptr) return matrix;
  if (rows % kOutputsOfWord != 0) {
    return InvalidArgument("tensor " + Quote(weight) + ": expected outputs that are a multiple of " +
                               std::to_string(kOutputsOfWord) + ", but config.json asks for a matrix of " +
                               ShapeToString(TensorFinder::Shape{rows, columns}),
                           weight);
  }
  IntegerLayout layout;
  layout.group_size = config.scheme.group_size > 0 ? config.scheme.group_size : columns;
  layout.groups = (columns + layout.group_size - 1) / layout.group_size;
  AwqTensors t;
  ASSIGN_OR_RETURN(t.weight, tensors.RequireTyped(weight, {{columns, rows / kOutputsOfWord}}, {DType::kI32}));
  ASSIGN_OR_RETURN(t.zeros,
                   tensors.RequireTyped(name + ".qzeros", {{layout.groups, rows / kOutputsOfWord}}, {DType::kI32}));
  ASSIGN_OR_RETURN(t.scales, tensors.RequireTyped(name + ".scales", {{layout.groups, rows}}, kFloatTypes));
  RETURN_IF_ERROR(CheckScales(*t.scales));
  layout.bytes = static_cast<std::int64_t>(t.weight->data.size() + t.zeros->data.size() + t.scales->data.size());
  matrix = std::make_shared<AwqMatrix>(weight, rows, columns, std::move(layout), t);
  return matrix;
}

}  // namespace loramux
