#include "quant/mxfp4.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/message.h"

namespace loramux {
namespace {

class Mxfp4Matrix : public StoredMatrix {
 public:
  Mxfp4Matrix(const StoredTensor& blocks, const StoredTensor& scales, std::int64_t rows, std::int64_t columns)
      : StoredMatrix(blocks.name, rows, columns), blocks_(blocks), scales_(scales) {}

  std::int64_t bytes() const override { return static_cast<std::int64_t>(blocks_.data.size() + scales_.data.size()); }
  WeightFormat format() const override { return WeightFormat::kMx4; }
  std::optional<Kept> kept() const override { return Kept{format()}; }

  void ReadFloats(std::int64_t first, std::int64_t count, float* out) const override {
    for (std::int64_t i = 0; i < count; ++i) ReadGroups(first + i, 1).ReadRow(0, out + i * columns());
  }

  GroupedRows ReadGroups(std::int64_t first, std::int64_t count) const override {
    GroupedRows out(format(), count, columns());
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t g = 0; g < out.groups(); ++g) {
        const auto at = static_cast<std::size_t>((first + row) * out.groups() + g);
        const auto exponent = static_cast<std::uint8_t>(scales_.data[at]);
        const Mx4Group group = ReadMx4Group(exponent, blocks_.data.data() + at * (kWeightGroup / 2), false);
        std::ranges::copy(group.codes, out.CodesOf(row) + g * kWeightGroup);
        out.ScalesOf(row)[g] = group.scale;
        out.MinimumsOf(row)[g] = -static_cast<float>(kQ8Zero) * group.scale;
      }
    }
    return out;
  }

 private:
  const StoredTensor &blocks_, &scales_;
};

Status CheckColumns(const std::string& name, std::int64_t columns) {
  if (columns % kWeightGroup == 0) return Ok{};
  return Unsupported("tensor " + Quote(name) + ": expected a multiple of 32 inputs, found " + std::to_string(columns),
                     name);
}

Status CheckMx4Exponents(const StoredTensor& scales) {
  const auto most = std::ranges::max(scales.data);
  if (static_cast<int>(most) <= kMostMx4Exponent) return Ok{};
  return Unsupported("tensor " + Quote(scales.name) + ": expected exponents of at most " +
                         std::to_string(kMostMx4Exponent) + " (MXFP4 adds 127), found " +
                         std::to_string(static_cast<int>(most)),
                     scales.name);
}

}  // namespace

Mx4Group ReadMx4Group(std::uint8_t exponent, const std::byte* bytes, bool halves) {
  Mx4Group group;
  // Below it, values are less than a millionth.
  group.scale = exponent < kLeastMx4Exponent ? 0.0f : std::ldexp(1.0f, static_cast<int>(exponent) - 128);
  constexpr std::int64_t kBytes = kWeightGroup / 2;
  for (std::int64_t i = 0; i < kBytes; ++i) {
    const auto byte = static_cast<unsigned>(bytes[i]);
    group.codes[halves ? i : 2 * i] = kMx4Codes[byte & 0xf];
    group.codes[halves ? kBytes + i : 2 * i + 1] = kMx4Codes[byte >> 4];
  }
  return group;
}

Result<std::shared_ptr<const StoredMatrix>> FindMxfp4Experts(TensorFinder& finder, const std::string& name,
                                                             const ModelSource::StackedShape& shape) {
  const std::string blocks_name = name + "_blocks", scales_name = name + "_scales";
  if (finder.Peek(blocks_name) == nullptr) return std::shared_ptr<const StoredMatrix>();
  RETURN_IF_ERROR(CheckColumns(blocks_name, shape.columns));
  const std::int64_t groups = shape.columns / kWeightGroup;
  ASSIGN_OR_RETURN(
      const StoredTensor* blocks,
      finder.RequireTyped(blocks_name, {{shape.experts, shape.rows, groups, kWeightGroup / 2}}, {DType::kU8}));
  ASSIGN_OR_RETURN(const StoredTensor* scales,
                   finder.RequireTyped(scales_name, {{shape.experts, shape.rows, groups}}, {DType::kU8}));
  RETURN_IF_ERROR(CheckMx4Exponents(*scales));
  return std::shared_ptr<const StoredMatrix>(
      std::make_shared<Mxfp4Matrix>(*blocks, *scales, shape.experts * shape.rows, shape.columns));
}

Result<std::shared_ptr<const StoredMatrix>> RequireMxfp4Matrix(TensorFinder& finder, const std::string& name,
                                                               std::int64_t rows, std::int64_t columns) {
  const std::string weight = name + ".weight_packed";
  RETURN_IF_ERROR(CheckColumns(weight, columns));
  ASSIGN_OR_RETURN(const StoredTensor* packed, finder.RequireTyped(weight, {{rows, columns / 2}}, {DType::kU8}));
  ASSIGN_OR_RETURN(const StoredTensor* scales,
                   finder.RequireTyped(name + ".weight_scale", {{rows, columns / kWeightGroup}}, {DType::kU8}));
  RETURN_IF_ERROR(CheckMx4Exponents(*scales));
  return std::shared_ptr<const StoredMatrix>(std::make_shared<Mxfp4Matrix>(*packed, *scales, rows, columns));
}

}  // namespace loramux
