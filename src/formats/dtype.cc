#include "formats/dtype.h"

#include <array>

#include "base/check.h"

namespace loramux {
namespace {

struct DTypeInfo {
  DType dtype;
  const char* name;
  std::size_t size;
};

// In the order of the enumeration, so that a DType is an index.
constexpr std::array<DTypeInfo, 15> kDTypes = {{
    {DType::kF32, "F32", 4},
    {DType::kBF16, "BF16", 2},
    {DType::kF16, "F16", 2},
    {DType::kF64, "F64", 8},
    {DType::kI64, "I64", 8},
    {DType::kI32, "I32", 4},
    {DType::kI16, "I16", 2},
    {DType::kI8, "I8", 1},
    {DType::kU8, "U8", 1},
    {DType::kBool, "BOOL", 1},
    {DType::kF8E4M3, "F8_E4M3", 1},
    {DType::kF8E5M2, "F8_E5M2", 1},
    {DType::kU16, "U16", 2},
    {DType::kU32, "U32", 4},
    {DType::kU64, "U64", 8},
}};

constexpr bool TableFollowsEnumeration() {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (static_cast<std::size_t>(kDTypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(TableFollowsEnumeration());

const DTypeInfo& Info(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  CHECK_LT(index, kDTypes.size());
  return kDTypes[index];
}

}  // namespace

std::size_t DTypeSize(DType dtype) { return Info(dtype).size; }

const char* DTypeName(DType dtype) { return Info(dtype).name; }

std::optional<DType> ParseDType(std::string_view safetensors_name) {
  for (const DTypeInfo& info : kDTypes) {
    if (safetensors_name == info.name) return info.dtype;
  }
  return std::nullopt;
}

}  // namespace loramux
