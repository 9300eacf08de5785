#include "tensor/weight_format.h"

#include "base/check.h"

namespace loramux {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF16, WeightFormat::kQ8,
                                     WeightFormat::kQ4};

// Bytes of a group of an output: its codes, a scale, and a minimum.
constexpr std::size_t kQ8GroupBytes = kWeightGroup + 2;
constexpr std::size_t kQ4GroupBytes = kWeightGroup / 2 + 2 + 2;
constexpr std::size_t kMx4GroupBytes = kWeightGroup / 2 + 2;
constexpr std::size_t kF8GroupBytes = kWeightGroup + 4;

}  // namespace

WeightFormat FormatOf(DType dtype) {
  CHECK(IsWeightDType(dtype));
  if (dtype == DType::kF32) return WeightFormat::kF32;
  return dtype == DType::kBF16 ? WeightFormat::kBF16 : WeightFormat::kF16;
}

DType DTypeOf(WeightFormat format) {
  CHECK(!IsQuantised(format));
  if (format == WeightFormat::kF32) return DType::kF32;
  return format == WeightFormat::kBF16 ? DType::kBF16 : DType::kF16;
}

std::size_t WeightRowBytes(WeightFormat format, std::int64_t k) {
  if (format == WeightFormat::kQ8) return static_cast<std::size_t>(WeightGroups(k)) * kQ8GroupBytes;
  if (format == WeightFormat::kQ4) return static_cast<std::size_t>(WeightGroups(k)) * kQ4GroupBytes;
  if (format == WeightFormat::kMx4) return static_cast<std::size_t>(WeightGroups(k)) * kMx4GroupBytes;
  if (format == WeightFormat::kF8) return static_cast<std::size_t>(WeightGroups(k)) * kF8GroupBytes;
  return static_cast<std::size_t>(k) * DTypeSize(DTypeOf(format));
}

const char* WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBF16:
      return "bf16";
    case WeightFormat::kF16:
      return "f16";
    case WeightFormat::kQ8:
      return "q8";
    case WeightFormat::kQ4:
      return "q4";
    case WeightFormat::kMx4:
      return "mxfp4";
    case WeightFormat::kF8:
      return "fp8";
  }
  return "";
}

std::optional<WeightFormat> ParseWeightFormat(std::string_view name) {
  for (const WeightFormat format : kFormats) {
    if (name == WeightFormatName(format)) return format;
  }
  return std::nullopt;
}

}  // namespace loramux
