#include "formats/dtype.h"

#include <array>
#include <cstring>

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

// The exponent of each element in eight bytes, and its lowest bit. All bits of an exponent are set in NaN and infinity
// only; then adding the lowest bit carries into the sign's place, and never into the next element.
struct ExponentBits {
  std::uint64_t mask;
  std::uint64_t low;
  std::uint64_t sign;
};

ExponentBits BitsOf(DType dtype) {
  if (dtype == DType::kF32) return {0x7F8000007F800000, 0x0080000000800000, 0x8000000080000000};
  if (dtype == DType::kBF16) return {0x7F807F807F807F80, 0x0080008000800080, 0x8000800080008000};
  CHECK(dtype == DType::kF16);
  return {0x7C007C007C007C00, 0x0400040004000400, 0x8000800080008000};
}

// Non-zero if one of the elements in the first `size` <= 8 bytes at `data` is not finite.
std::uint64_t NotFinite(const ExponentBits& bits, const std::byte* data, std::size_t size) {
  std::uint64_t word = 0;
  std::memcpy(&word, data, size);
  return ((word & bits.mask) + bits.low) & bits.sign;
}

}  // namespace

std::optional<std::size_t> FirstNotFinite(DType dtype, std::span<const std::byte> data) {
  const ExponentBits bits = BitsOf(dtype);
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  std::uint64_t found = 0;
  std::size_t at = 0;
  for (; at + kWord <= data.size(); at += kWord) found |= NotFinite(bits, data.data() + at, kWord);
  if (at < data.size()) found |= NotFinite(bits, data.data() + at, data.size() - at);
  if (found == 0) return std::nullopt;
  const std::size_t element = DTypeSize(dtype);
  for (at = 0; NotFinite(bits, data.data() + at, element) == 0;) at += element;
  return at / element;
}

std::size_t DTypeSize(DType dtype) { return Info(dtype).size; }

const char* DTypeName(DType dtype) { return Info(dtype).name; }

std::optional<DType> ParseDType(std::string_view safetensors_name) {
  for (const DTypeInfo& info : kDTypes) {
    if (safetensors_name == info.name) return info.dtype;
  }
  return std::nullopt;
}

}  // namespace loramux
