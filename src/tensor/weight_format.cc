#include "tensor/weight_format.h"

#include "base/check.h"

namespace loramux {
namespace {

// The length of a run of elements that every vector of the kernels divides.
constexpr std::int32_t kGroupUnit = 32;

std::int64_t BitsOf(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return 32;
    case WeightType::kBF16:
    case WeightType::kF16:
      return 16;
    case WeightType::kI8:
      return 8;
    case WeightType::kI4:
      return 4;
  }
  return 0;
}

const char* NameOf(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return "f32";
    case WeightType::kBF16:
      return "bf16";
    case WeightType::kF16:
      return "f16";
    case WeightType::kI8:
      return "int8";
    case WeightType::kI4:
      return "int4";
  }
  return "";
}

}  // namespace

WeightFormat WeightFormat::Of(DType dtype) {
  CHECK(IsWeightDType(dtype));
  if (dtype == DType::kF32) return {WeightType::kF32, 0};
  return {dtype == DType::kBF16 ? WeightType::kBF16 : WeightType::kF16, 0};
}

std::size_t WeightFormat::RowBytes(std::int64_t k) const {
  const std::int64_t scales = quantised() ? (k + group - 1) / group : 0;
  return static_cast<std::size_t>((k * BitsOf(type) + 7) / 8 + scales * 2);
}

std::string WeightFormat::Name() const {
  return quantised() ? std::string(NameOf(type)) + ":" + std::to_string(group) : NameOf(type);
}

Status WeightFormat::Validate() const {
  const bool good = quantised() ? group > 0 && group % kGroupUnit == 0 : group == 0;
  if (good) return Ok{};
  return InvalidArgument("group of " + std::string(NameOf(type)) + " weights: expected " +
                         (quantised() ? "a multiple of " + std::to_string(kGroupUnit) : "0") + ", found " +
                         std::to_string(group));
}

}  // namespace loramux
