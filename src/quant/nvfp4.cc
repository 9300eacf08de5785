#include "quant/nvfp4.h"

#include <cmath>
#include <vector>

#include "base/message.h"
#include "quant/quantise.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

constexpr std::int64_t kGroup = 16;

class Nvfp4Matrix : public StoredMatrix {
 public:
  // `factor`: what all values are multiplied by.
  Nvfp4Matrix(const StoredTensor& weight, const StoredTensor& scales, float factor, std::int64_t rows,
              std::int64_t columns)
      : StoredMatrix(weight.name, rows, columns), weight_(weight), scales_(scales), factor_(factor) {}

  std::int64_t bytes() const override { return static_cast<std::int64_t>(weight_.data.size() + scales_.data.size()); }
  WeightFormat format() const override { return WeightFormat::kQ8; }

  void ReadFloats(std::int64_t first, std::int64_t count, float* out) const override {
    const std::int64_t groups = columns() / kGroup;
    for (std::int64_t g = first * groups; g < (first + count) * groups; ++g) {
      const float scale = factor_ * F8E4M3ToF32(static_cast<std::uint8_t>(scales_.data[static_cast<std::size_t>(g)]));
      const std::byte* const pairs = weight_.data.data() + g * (kGroup / 2);
      for (std::int64_t i = 0; i < kGroup / 2; ++i) {
        const auto pair = static_cast<unsigned>(pairs[i]);
        *out++ = scale * ValueOf(pair & 0xf);
        *out++ = scale * ValueOf(pair >> 4);
      }
    }
  }

  GroupedRows ReadGroups(std::int64_t first, std::int64_t count) const override {
    std::vector<float> floats(static_cast<std::size_t>(count * columns()));
    ReadFloats(first, count, floats.data());
    return Quantise(format(), floats.data(), count, columns());
  }

 private:
  // kMx4Codes are twice the values.
  static float ValueOf(unsigned code) { return 0.5f * static_cast<float>(static_cast<int>(kMx4Codes[code]) - kQ8Zero); }

  const StoredTensor &weight_, &scales_;
  const float factor_;
};

// Error: a scale is not a number.
Status CheckScalesOf8Bits(const StoredTensor& scales) {
  for (std::size_t i = 0; i < scales.data.size(); ++i) {
    if (std::isfinite(F8E4M3ToF32(static_cast<std::uint8_t>(scales.data[i])))) continue;
    return InvalidArgument(
        "tensor " + Quote(scales.name) + ": expected numbers, found NaN as element " + std::to_string(i), scales.name);
  }
  return Ok{};
}

}  // namespace

Result<std::shared_ptr<const StoredMatrix>> RequireNvfp4Matrix(TensorFinder& tensors, const Nvfp4Names& names,
                                                               const std::string& name, std::int64_t rows,
                                                               std::int64_t columns) {
  if (columns % kGroup != 0) {
    return Unsupported(
        "tensor " + Quote(name + names.weight) + ": expected a multiple of 16 inputs, found " + std::to_string(columns),
        name + names.weight);
  }
  ASSIGN_OR_RETURN(const StoredTensor* weight,
                   tensors.RequireTyped(name + names.weight, {{rows, columns / 2}}, {DType::kU8}));
  ASSIGN_OR_RETURN(const StoredTensor* scales,
                   tensors.RequireTyped(name + names.scales, {{rows, columns / kGroup}}, {DType::kF8E4M3}));
  ASSIGN_OR_RETURN(const StoredTensor* global,
                   tensors.RequireTyped(name + names.global, {{}, {1}, {1, 1}}, {DType::kF32}));
  RETURN_IF_ERROR(CheckScalesOf8Bits(*scales));
  const float number = LoadAsF32(global->dtype, global->data.data(), 0);
  const float factor = names.divides ? 1.0f / number : number;
  // The largest value of all is 6 * 448 times it.
  if (!(number > 0) || !std::isfinite(number) || !std::isfinite(factor * 6.0f * kLargestF8E4M3)) {
    return InvalidArgument("tensor " + Quote(global->name) + ": expected a number above 0 with which weights are " +
                               "finite, found " + std::to_string(number),
                           global->name);
  }
  return std::shared_ptr<const StoredMatrix>(std::make_shared<Nvfp4Matrix>(*weight, *scales, factor, rows, columns));
}

}  // namespace loramux
