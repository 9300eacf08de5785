#include "quant/integer_matrix.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "quant/quantise.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

// Whether `block` neighbouring inputs are always of one group.
bool OrderFits(const std::vector<std::int32_t>& order, std::int64_t block) {
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] != order[i - i % static_cast<std::size_t>(block)]) return false;
  }
  return true;
}

float RoundToHalf(float value) { return F16ToF32(F32ToF16(value)); }

class Int8Matrix : public IntegerMatrix {
 public:
  Int8Matrix(const std::string& name, std::int64_t rows, std::int64_t columns, IntegerLayout layout,
             const Int8Tensors& tensors)
      : IntegerMatrix(name, rows, columns, std::move(layout)), tensors_(tensors) {}

 protected:
  void ReadCodes(std::int64_t first, std::int64_t count, std::uint8_t* out) const override {
    const std::byte* const from = tensors_.weight->data.data() + first * columns();
    for (std::int64_t i = 0; i < count * columns(); ++i) out[i] = static_cast<std::uint8_t>(from[i]) ^ 0x80;
  }

  Affine AffineOf(std::int64_t row, std::int64_t group) const override {
    const std::int64_t at = row * tensors_.scale_stride + group;
    const int zero =
        tensors_.zeros == nullptr ? 0 : static_cast<std::int8_t>(tensors_.zeros->data[static_cast<std::size_t>(at)]);
    return {LoadAsF32(tensors_.scales->dtype, tensors_.scales->data.data(), at) * tensors_.factor, kQ8Zero + zero};
  }

 private:
  const Int8Tensors tensors_;
};

}  // namespace

IntegerMatrix::IntegerMatrix(std::string name, std::int64_t rows, std::int64_t columns, IntegerLayout layout)
    : StoredMatrix(std::move(name), rows, columns), layout_(std::move(layout)) {
  CHECK(layout_.bits == 4 || layout_.bits == 8);
  CHECK_GT(layout_.group_size, 0);
  fits_ = layout_.order.empty() ? layout_.group_size % kWeightGroup == 0 || layout_.group_size >= columns
                                : OrderFits(layout_.order, kWeightGroup);
  if (layout_.bits == 8 && !layout_.middle_zero) fits_ = false;
}

WeightFormat IntegerMatrix::format() const {
  return layout_.bits == 4 && fits_ ? WeightFormat::kQ4 : WeightFormat::kQ8;
}

std::optional<StoredMatrix::Kept> IntegerMatrix::kept() const {
  if (!fits_) return std::nullopt;
  return Kept{format(), layout_.order.empty() ? std::min(layout_.group_size, columns()) : kWeightGroup};
}

void IntegerMatrix::ReadFloats(std::int64_t first, std::int64_t count, float* out) const {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(count * columns()));
  ReadCodes(first, count, codes.data());
  std::vector<Affine> affine(static_cast<std::size_t>(layout_.groups));
  const std::int64_t block = layout_.order.empty() ? layout_.group_size : 1;
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t g = 0; g < layout_.groups; ++g) affine[static_cast<std::size_t>(g)] = AffineOf(first + r, g);
    const std::uint8_t* const code = codes.data() + r * columns();
    float* const to = out + r * columns();
    for (std::int64_t begin = 0; begin < columns(); begin += block) {
      const Affine map = affine[static_cast<std::size_t>(GroupOf(begin))];
      const std::int64_t end = block < columns() - begin ? begin + block : columns();
      for (std::int64_t c = begin; c < end; ++c) to[c] = map.scale * static_cast<float>(code[c] - map.zero);
    }
  }
}

GroupedRows IntegerMatrix::ReadGroups(std::int64_t first, std::int64_t count) const {
  if (!fits_) {
    std::vector<float> floats(static_cast<std::size_t>(count * columns()));
    ReadFloats(first, count, floats.data());
    return Quantise(format(), floats.data(), count, columns());
  }
  GroupedRows out(format(), count, columns());
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(count * columns()));
  ReadCodes(first, count, codes.data());
  for (std::int64_t r = 0; r < count; ++r) {
    std::copy_n(codes.data() + r * columns(), columns(), out.CodesOf(r));
    for (std::int64_t g = 0; g < out.groups(); ++g) {
      const Affine map = AffineOf(first + r, GroupOf(g * kWeightGroup));
      const int zero = format() == WeightFormat::kQ8 ? kQ8Zero : map.zero;
      const float scale = RoundToHalf(map.scale);
      out.ScalesOf(r)[g] = scale;
      out.MinimumsOf(r)[g] = RoundToHalf(-map.scale * static_cast<float>(zero));
      if (format() == WeightFormat::kQ8) out.MinimumsOf(r)[g] = -static_cast<float>(kQ8Zero) * scale;
    }
  }
  return out;
}

std::unique_ptr<StoredMatrix> MakeInt8Matrix(const std::string& name, std::int64_t rows, std::int64_t columns,
                                             IntegerLayout layout, const Int8Tensors& tensors) {
  layout.middle_zero = tensors.zeros == nullptr || std::all_of(tensors.zeros->data.begin(), tensors.zeros->data.end(),
                                                               [](std::byte zero) { return zero == std::byte{0}; });
  layout.bytes = static_cast<std::int64_t>(tensors.weight->data.size() + tensors.scales->data.size() +
                                           (tensors.zeros == nullptr ? 0 : tensors.zeros->data.size()));
  return std::make_unique<Int8Matrix>(name, rows, columns, std::move(layout), tensors);
}

Status CheckScales(const StoredTensor& scales) {
  constexpr float kLargest = 65504.0f / 16;
  for (std::int64_t i = 0; i < scales.ElementCount(); ++i) {
    const float scale = LoadAsF32(scales.dtype, scales.data.data(), i);
    if (std::fabs(scale) <= kLargest) continue;
    return InvalidArgument("tensor " + Quote(scales.name) + ": expected finite scales of at most " +
                               std::to_string(kLargest) + ", found " + std::to_string(scale) + " as element " +
                               std::to_string(i),
                           scales.name);
  }
  return Ok{};
}

Status CheckFinite(const StoredTensor& tensor) {
  const auto index = FirstNotFinite(tensor.dtype, tensor.data);
  if (!index) return Ok{};
  return InvalidArgument(
      "tensor " + Quote(tensor.name) + ": expected finite numbers, found " +
          std::to_string(LoadAsF32(tensor.dtype, tensor.data.data(), static_cast<std::int64_t>(*index))) +
          " as element " + std::to_string(*index),
      tensor.name);
}

Result<std::vector<std::int32_t>> ReadOrder(const StoredTensor& tensor, std::int64_t group_size, std::int64_t groups) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(tensor.ElementCount()));
  bool plain = true;
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<std::int32_t>(LoadWord(tensor.data.data(), static_cast<std::int64_t>(i)));
    if (order[i] < 0 || order[i] >= groups) {
      return InvalidArgument("tensor " + Quote(tensor.name) + ": expected groups below " + std::to_string(groups) +
                                 ", found " + std::to_string(order[i]) + " for input " + std::to_string(i),
                             tensor.name);
    }
    plain = plain && order[i] == static_cast<std::int64_t>(i) / group_size;
  }
  if (plain) order.clear();
  return order;
}

}  // namespace loramux
