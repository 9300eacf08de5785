#include "quant/compressed_tensors.h"

#include <cstring>
#include <utility>

#include "base/message.h"
#include "quant/fp8.h"
#include "quant/integer_matrix.h"
#include "quant/mxfp4.h"
#include "quant/nvfp4.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

using Spread = QuantScheme::Spread;
using Store = QuantScheme::Store;
using Matrix = std::shared_ptr<const StoredMatrix>;
using Shape = TensorFinder::Shape;

// Integers along the inputs in words, with scales [outputs, groups].
struct PackedTensors {
  const StoredTensor *weight = nullptr, *scales = nullptr;
  const StoredTensor* zeros = nullptr;  // int32 packed along the outputs, or int8; null: in the middle
  int bits = 4;
  std::int64_t groups = 1, scale_stride = 1;
};

class WordMatrix : public IntegerMatrix {
 public:
  WordMatrix(const std::string& name, std::int64_t rows, std::int64_t columns, IntegerLayout layout,
             const PackedTensors& tensors)
      : IntegerMatrix(name, rows, columns, std::move(layout)), tensors_(tensors) {}

 protected:
  void ReadCodes(std::int64_t first, std::int64_t count, std::uint8_t* out) const override {
    const std::int64_t per_word = 32 / tensors_.bits, words = (columns() + per_word - 1) / per_word;
    const std::uint32_t mask = (1u << tensors_.bits) - 1;
    for (std::int64_t row = first; row < first + count; ++row) {
      for (std::int64_t w = 0; w < words; ++w) {
        std::uint32_t word = LoadWord(tensors_.weight->data.data(), row * words + w);
        for (std::int64_t c = w * per_word; c < columns() && c < (w + 1) * per_word; ++c, word >>= tensors_.bits) {
          *out++ = static_cast<std::uint8_t>(word & mask);
        }
      }
    }
  }

  Affine AffineOf(std::int64_t row, std::int64_t group) const override {
    const float scale =
        LoadAsF32(tensors_.scales->dtype, tensors_.scales->data.data(), row * tensors_.scale_stride + group);
    return {scale, ZeroOf(row, group)};
  }

 private:
  int ZeroOf(std::int64_t row, std::int64_t group) const {
    const int middle = 1 << (tensors_.bits - 1);
    if (tensors_.zeros == nullptr) return middle;
    const std::byte* const data = tensors_.zeros->data.data();
    if (tensors_.zeros->dtype == DType::kI8)
      return middle + static_cast<std::int8_t>(data[row * tensors_.groups + group]);
    const std::int64_t per_word = 32 / tensors_.bits;
    const std::uint32_t word = LoadWord(data, row / per_word * tensors_.groups + group);
    return static_cast<int>(word >> (tensors_.bits * (row % per_word)) & ((1u << tensors_.bits) - 1));
  }

  const PackedTensors tensors_;
};

// Group size and groups of a scheme for integers.
IntegerLayout LayoutOf(const QuantScheme& scheme, std::int64_t columns) {
  IntegerLayout layout;
  layout.bits = scheme.bits;
  layout.group_size = scheme.spread == Spread::kGroup ? scheme.group_size : columns;
  layout.groups = (columns + layout.group_size - 1) / layout.group_size;
  return layout;
}

Result<const StoredTensor*> RequireScales(TensorFinder& tensors, const QuantScheme& scheme, const std::string& name,
                                          std::int64_t rows, std::int64_t groups) {
  const std::string scale = name + ".weight_scale";
  const StoredTensor* scales = nullptr;
  if (scheme.spread == Spread::kTensor) {
    ASSIGN_OR_RETURN(scales, tensors.RequireTyped(scale, {{}, {1}, {1, 1}}, kFloatTypes));
  } else if (groups == 1) {
    ASSIGN_OR_RETURN(scales, tensors.RequireTyped(scale, {{rows, 1}, {rows}}, kFloatTypes));
  } else {
    ASSIGN_OR_RETURN(scales, tensors.RequireTyped(scale, {{rows, groups}}, kFloatTypes));
  }
  RETURN_IF_ERROR(CheckScales(*scales));
  return scales;
}

Status CheckStoredShape(TensorFinder& tensors, const std::string& name, std::int64_t rows, std::int64_t columns) {
  ASSIGN_OR_RETURN(const StoredTensor* shape,
                   tensors.FindTyped(name + ".weight_shape", {{2}}, {DType::kI64, DType::kI32}));
  if (shape == nullptr) return Ok{};
  Shape stored(2);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::byte* const from = shape->data.data() + i * DTypeSize(shape->dtype);
    if (shape->dtype == DType::kI64) std::memcpy(&stored[i], from, sizeof(stored[i]));
    if (shape->dtype == DType::kI32) stored[i] = static_cast<std::int32_t>(LoadWord(from, 0));
  }
  if (stored == Shape{rows, columns}) return Ok{};
  return InvalidArgument("tensor " + Quote(shape->name) + " holds " + ShapeToString(stored) +
                             ", but config.json asks for " + ShapeToString(Shape{rows, columns}),
                         shape->name);
}

// The layers of all formats with scales of activations, which nothing uses.
void TakeActivations(TensorFinder& tensors, const std::string& name) {
  for (const char* suffix :
       {".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale", ".output_zero_point"}) {
    tensors.FindAny(name + suffix);
  }
}

Result<Matrix> RequirePacked(TensorFinder& tensors, const QuantScheme& scheme, const std::string& name,
                             std::int64_t rows, std::int64_t columns) {
  const std::string weight = name + ".weight_packed", zero = name + ".weight_zero_point";
  IntegerLayout layout = LayoutOf(scheme, columns);
  const std::int64_t per_word = 32 / layout.bits;
  PackedTensors t;
  t.bits = layout.bits;
  t.groups = layout.groups;
  t.scale_stride = scheme.spread == Spread::kTensor ? 0 : layout.groups;
  ASSIGN_OR_RETURN(t.weight,
                   tensors.RequireTyped(weight, {{rows, (columns + per_word - 1) / per_word}}, {DType::kI32}));
  ASSIGN_OR_RETURN(t.scales, RequireScales(tensors, scheme, name, rows, layout.groups));
  RETURN_IF_ERROR(CheckStoredShape(tensors, name, rows, columns));
  if (!scheme.symmetric) {
    if (scheme.spread == Spread::kTensor) {
      return Unsupported("tensor " + Quote(zero) +
                             ": zero points of a whole matrix are not supported in pack-quantized, "
                             "only by output or group",
                         zero);
    }
    ASSIGN_OR_RETURN(
        t.zeros, tensors.RequireTyped(zero, {{(rows + per_word - 1) / per_word, layout.groups}, {rows, layout.groups}},
                                      {DType::kI32, DType::kI8}));
    if (t.zeros->shape[0] != (t.zeros->dtype == DType::kI8 ? rows : (rows + per_word - 1) / per_word)) {
      return InvalidArgument("tensor " + Quote(zero) + " has shape " + ShapeToString(t.zeros->shape) +
                                 ", which does not fit its type " + DTypeName(t.zeros->dtype),
                             zero);
    }
  }
  ASSIGN_OR_RETURN(const StoredTensor* order, tensors.FindTyped(name + ".weight_g_idx", {{columns}}, {DType::kI32}));
  if (order != nullptr) {
    ASSIGN_OR_RETURN(layout.order, ReadOrder(*order, layout.group_size, layout.groups));
  }
  layout.middle_zero = t.zeros == nullptr;
  layout.bytes = static_cast<std::int64_t>(t.weight->data.size() + t.scales->data.size() +
                                           (t.zeros == nullptr ? 0 : t.zeros->data.size()));
  return Matrix(std::make_shared<WordMatrix>(weight, rows, columns, std::move(layout), t));
}

Result<Matrix> RequireInt8(TensorFinder& tensors, const QuantScheme& scheme, const std::string& name, std::int64_t rows,
                           std::int64_t columns) {
  const std::string weight = name + ".weight";
  IntegerLayout layout = LayoutOf(scheme, columns);
  layout.bits = 8;  // as stored, however few bits the integers have
  Int8Tensors t;
  t.scale_stride = scheme.spread == Spread::kTensor ? 0 : layout.groups;
  ASSIGN_OR_RETURN(t.weight, tensors.RequireTyped(weight, {{rows, columns}}, {DType::kI8}));
  ASSIGN_OR_RETURN(t.scales, RequireScales(tensors, scheme, name, rows, layout.groups));
  if (!scheme.symmetric) {
    ASSIGN_OR_RETURN(t.zeros, tensors.RequireTyped(name + ".weight_zero_point", {t.scales->shape}, {DType::kI8}));
  }
  return Matrix(MakeInt8Matrix(weight, rows, columns, std::move(layout), t));
}

}  // namespace

Result<Matrix> FindCompressedMatrix(TensorFinder& tensors, const QuantizationConfig& config, const std::string& name,
                                    std::int64_t rows, std::int64_t columns) {
  const std::string packed = name + ".weight_packed", plain = name + ".weight";
  const StoredTensor* weight = tensors.Peek(packed);
  if (weight == nullptr) weight = tensors.Peek(plain);
  if (weight == nullptr || IsWeightDType(weight->dtype)) return Matrix();
  const QuantScheme* const scheme = config.SchemeOf(name);
  if (scheme == nullptr) {
    return InvalidArgument("tensor " + Quote(weight->name) + " has type " + DTypeName(weight->dtype) +
                               ", but `ignore` and `targets` of quantization_config leave this layer in floats",
                           weight->name);
  }
  if (config.static_activations) TakeActivations(tensors, name);
  switch (scheme->store) {
    case Store::kPackedIntegers:
      return RequirePacked(tensors, *scheme, name, rows, columns);
    case Store::kIntegers:
      return RequireInt8(tensors, *scheme, name, rows, columns);
    case Store::kFloat8:
      return RequireFp8Matrix(tensors, *scheme, name, "weight_scale", rows, columns);
    case Store::kFloat4:
      return scheme->exponents ? RequireMxfp4Matrix(tensors, name, rows, columns)
                               : RequireNvfp4Matrix(tensors, kCompressedNvfp4, name, rows, columns);
  }
  return Matrix();
}

}  // namespace loramux
