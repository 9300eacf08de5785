// Element types of stored tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace loramux {

// The element types of safetensors.
enum class DType : std::uint8_t {
  kF32,
  kBF16,
  kF16,
  kF64,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool,
  kF8E4M3,
  kF8E5M2,
  kU16,
  kU32,
  kU64
};

// Bytes of one element.
std::size_t DTypeSize(DType dtype);
// The name in safetensors headers: "F32", "BF16", ...
const char* DTypeName(DType dtype);
// The type of this name; nullopt if there is none.
std::optional<DType> ParseDType(std::string_view safetensors_name);
// Whether weights may have this type: f32, bf16, f16.
constexpr bool IsWeightDType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

// Whether rows of adapters of this type are codes of 8 bits, to which a factor belongs.
constexpr bool HasRowFactors(DType dtype) { return dtype == DType::kI8 || dtype == DType::kF8E4M3; }

// Index of the first element that is NaN or infinite; nullopt if all are finite. `data` holds whole elements and may be
// unaligned. REQUIRES: IsWeightDType(dtype).
std::optional<std::size_t> FirstNotFinite(DType dtype, std::span<const std::byte> data);

}  // namespace loramux
