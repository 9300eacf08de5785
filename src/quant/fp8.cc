#include "quant/fp8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/message.h"
#include "quant/integer_matrix.h"
#include "quant/quantise.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

std::array<float, 256> Float8Table() {
  std::array<float, 256> table{};
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = F8E4M3ToF32(static_cast<std::uint8_t>(i));
  return table;
}

struct Fp8Tensors {
  const StoredTensor *weight = nullptr, *scales = nullptr;
  std::int64_t block_rows = 1, block_columns = 1;  // extents of a block that shares a scale
  bool inverse = false;                            // as QuantScheme::inverse
  bool exponents = false;                          // as QuantScheme::exponents

  float ScaleOf(std::int64_t i) const {
    if (exponents) return std::ldexp(1.0f, static_cast<int>(scales->data[static_cast<std::size_t>(i)]) - 127);
    return LoadAsF32(scales->dtype, scales->data.data(), i);
  }
};

class Fp8Matrix : public StoredMatrix {
 public:
  Fp8Matrix(const std::string& name, std::int64_t rows, std::int64_t columns, const Fp8Tensors& tensors)
      : StoredMatrix(name, rows, columns), tensors_(tensors) {}

  std::int64_t bytes() const override {
    return static_cast<std::int64_t>(tensors_.weight->data.size() + tensors_.scales->data.size());
  }
  WeightFormat format() const override { return WeightFormat::kQ8; }

  void ReadFloats(std::int64_t first, std::int64_t count, float* out) const override {
    static const std::array<float, 256> table = Float8Table();
    const std::int64_t block = tensors_.block_columns, blocks = (columns() + block - 1) / block;
    for (std::int64_t row = first; row < first + count; ++row) {
      const std::byte* const codes = tensors_.weight->data.data() + row * columns();
      for (std::int64_t b = 0; b < blocks; ++b) {
        const float scale = tensors_.ScaleOf(row / tensors_.block_rows * blocks + b);
        const std::int64_t end = std::min(columns(), (b + 1) * block);
        for (std::int64_t c = b * block; c < end; ++c) {
          const float value = table[static_cast<std::size_t>(codes[c])];
          *out++ = tensors_.inverse ? value / scale : value * scale;
        }
      }
    }
  }

  std::optional<Kept> kept() const override {
    const std::int64_t block = std::min(tensors_.block_columns, columns());
    if (tensors_.inverse || (block % kWeightGroup != 0 && block < columns())) return std::nullopt;
    return Kept{WeightFormat::kF8, block};
  }

  GroupedRows ReadKept(std::int64_t first, std::int64_t count) const override {
    const std::int64_t block = tensors_.block_columns, blocks = (columns() + block - 1) / block;
    GroupedRows out(WeightFormat::kF8, count, columns());
    for (std::int64_t r = 0; r < count; ++r) {
      std::memcpy(out.CodesOf(r), tensors_.weight->data.data() + (first + r) * columns(),
                  static_cast<std::size_t>(columns()));
      for (std::int64_t g = 0; g < out.groups(); ++g) {
        float& scale = out.ScalesOf(r)[g];
        scale = tensors_.ScaleOf((first + r) / tensors_.block_rows * blocks + g * kWeightGroup / block);
        // What a device would read as a number is none.
        const std::uint8_t* const codes = out.CodesOf(r) + g * kWeightGroup;
        if (std::any_of(codes, codes + kWeightGroup, [](std::uint8_t code) { return (code & 0x7f) == 0x7f; }))
          scale = std::numeric_limits<float>::quiet_NaN();
      }
    }
    return out;
  }

  GroupedRows ReadGroups(std::int64_t first, std::int64_t count) const override {
    std::vector<float> floats(static_cast<std::size_t>(count * columns()));
    ReadFloats(first, count, floats.data());
    return Quantise(format(), floats.data(), count, columns());
  }

 private:
  const Fp8Tensors tensors_;
};

// Error: the largest value, times a scale, is not finite.
Status CheckExponents(const StoredTensor& scales) {
  constexpr int kMost = 127 + 127 - 9;  // the largest value is 2^8 * 1.75
  const auto most = static_cast<int>(std::ranges::max(scales.data));
  if (most <= kMost) return Ok{};
  return InvalidArgument("tensor " + Quote(scales.name) + ": expected exponents of at most " + std::to_string(kMost) +
                             " (MXFP8 adds 127), found " + std::to_string(most),
                         scales.name);
}

std::int64_t CountOf(std::int64_t extent, std::int64_t block) { return (extent + block - 1) / block; }

// Error: the largest value, divided by a scale, is not finite.
Status CheckDivisors(const StoredTensor& scales) {
  for (std::int64_t i = 0; i < scales.ElementCount(); ++i) {
    const float scale = LoadAsF32(scales.dtype, scales.data.data(), i);
    if (std::isfinite(kLargestF8E4M3 / scale)) continue;
    return InvalidArgument("tensor " + Quote(scales.name) + ": expected scales by which " +
                               std::to_string(kLargestF8E4M3) + " can be divided, found " + std::to_string(scale) +
                               " as element " + std::to_string(i),
                           scales.name);
  }
  return Ok{};
}

}  // namespace

Result<std::shared_ptr<const StoredMatrix>> RequireFp8Matrix(TensorFinder& tensors, const QuantScheme& scheme,
                                                             const std::string& name, const std::string& scales,
                                                             std::int64_t rows, std::int64_t columns) {
  const std::string weight = name + ".weight", scale = name + "." + scales;
  Fp8Tensors t;
  ASSIGN_OR_RETURN(t.weight, tensors.RequireTyped(weight, {{rows, columns}}, {DType::kF8E4M3}));
  if (scheme.spread == QuantScheme::Spread::kTensor) {
    t.block_rows = rows;
    t.block_columns = columns;
    ASSIGN_OR_RETURN(t.scales, tensors.RequireTyped(scale, {{}, {1}, {1, 1}}, kFloatTypes));
  } else if (scheme.spread == QuantScheme::Spread::kChannel) {
    t.block_columns = columns;
    ASSIGN_OR_RETURN(t.scales, tensors.RequireTyped(scale, {{rows, 1}, {rows}}, kFloatTypes));
  } else {
    const bool group = scheme.spread == QuantScheme::Spread::kGroup;
    t.block_rows = group ? 1 : scheme.block_rows;
    t.block_columns = group ? scheme.group_size : scheme.block_columns;
    const TensorFinder::Shape shape = {CountOf(rows, t.block_rows), CountOf(columns, t.block_columns)};
    t.exponents = scheme.exponents;
    if (t.exponents) {
      ASSIGN_OR_RETURN(t.scales, tensors.RequireTyped(scale, {shape}, {DType::kU8}));
    } else {
      ASSIGN_OR_RETURN(t.scales, tensors.RequireTyped(scale, {shape}, kFloatTypes));
    }
  }
  RETURN_IF_ERROR(t.exponents ? CheckExponents(*t.scales) : CheckFinite(*t.scales));
  t.inverse = scheme.inverse;
  if (t.inverse) RETURN_IF_ERROR(CheckDivisors(*t.scales));
  return std::shared_ptr<const StoredMatrix>(std::make_shared<Fp8Matrix>(weight, rows, columns, t));
}

Result<std::shared_ptr<const StoredMatrix>> FindFp8Matrix(TensorFinder& tensors, const QuantizationConfig& config,
                                                          const std::string& name, std::int64_t rows,
                                                          std::int64_t columns) {
  const StoredTensor* weight = tensors.Peek(name + ".weight");
  if (weight == nullptr || IsWeightDType(weight->dtype)) return std::shared_ptr<const StoredMatrix>();
  if (config.static_activations) {
    tensors.FindAny(name + ".input_scale");
    tensors.FindAny(name + ".activation_scale");
    tensors.FindAny(name + ".input_scale_ub");
  }
  const char* const scales = tensors.Peek(name + ".weight_scale_inv") != nullptr ? "weight_scale_inv" : "weight_scale";
  return RequireFp8Matrix(tensors, config.scheme, name, scales, rows, columns);
}

}  // namespace loramux
