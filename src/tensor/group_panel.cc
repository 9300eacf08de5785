#include "tensor/group_panel.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

std::int64_t GroupBytes(WeightFormat format) {
  if (format == WeightFormat::kMx4) return kMx4PanelGroupBytes;
  return format == WeightFormat::kQ8 ? kQ8PanelGroupBytes : kQ4PanelGroupBytes;
}

std::int64_t CodesOffset(WeightFormat format) { return IsCentred(format) ? kHalfsBytes : 2 * kHalfsBytes; }

// The code in memory of one in GroupedRows, and back.
int StoredCode(WeightFormat format, std::uint8_t code) {
  if (format != WeightFormat::kMx4) return code;
  const auto* const found = std::ranges::find(kMx4Codes, code);
  CHECK(found != std::end(kMx4Codes));
  return static_cast<int>(found - std::begin(kMx4Codes));
}
std::uint8_t CodeOf(WeightFormat format, int stored) {
  if (format == WeightFormat::kQ8) return static_cast<std::uint8_t>(stored);
  return format == WeightFormat::kMx4 ? kMx4Codes[stored & 0xf] : static_cast<std::uint8_t>(stored & 0xf);
}

void StoreHalf(std::byte* to, std::int64_t index, float value) {
  const std::uint16_t bits = F32ToF16(value);
  std::memcpy(to + 2 * index, &bits, sizeof(bits));
}

float LoadHalf(const std::byte* from, std::int64_t index) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, from + 2 * index, sizeof(bits));
  return F16ToF32(bits);
}

// The byte of input `t` of a group, and by how many bits its code is shifted there.
struct CodePlace {
  std::int64_t byte;
  int shift;
};

CodePlace PlaceOf(WeightFormat format, std::int64_t output, std::int64_t t) {
  const std::int64_t quad = t / kQuad, in_quad = output * kQuad + t % kQuad;
  if (format == WeightFormat::kQ8) return {quad * kQuadBytes + in_quad, 0};
  return {quad / 2 * kQuadBytes + in_quad, quad % 2 == 0 ? 0 : 4};
}

}  // namespace

void PackGroupRow(const GroupedRows& source, std::int64_t row, std::int64_t output, std::byte* panel) {
  const WeightFormat format = source.format;
  const std::uint8_t* codes = source.CodesOf(row);
  for (std::int64_t g = 0; g < source.groups(); ++g, panel += GroupBytes(format), codes += kWeightGroup) {
    StoreHalf(panel, output, source.ScalesOf(row)[g]);
    if (format == WeightFormat::kQ4) StoreHalf(panel + kHalfsBytes, output, source.MinimumsOf(row)[g]);
    std::byte* const to = panel + CodesOffset(format);
    for (std::int64_t t = 0; t < kWeightGroup; ++t) {
      const CodePlace place = PlaceOf(format, output, t);
      const int mask = format == WeightFormat::kQ8 ? 0xff : 0xf << place.shift;
      const int before = static_cast<int>(to[place.byte]);
      to[place.byte] =
          static_cast<std::byte>((before & ~mask) | ((StoredCode(format, codes[t]) << place.shift) & mask));
    }
  }
}

OutputGroup ReadGroup(WeightFormat format, const std::byte* panel, std::int64_t output, std::int64_t group) {
  panel += group * GroupBytes(format);
  OutputGroup out;
  out.scale = LoadHalf(panel, output);
  if (format == WeightFormat::kQ4) out.minimum = LoadHalf(panel + kHalfsBytes, output);
  if (IsCentred(format)) out.zero = kQ8Zero;
  const std::byte* const codes = panel + CodesOffset(format);
  for (std::int64_t t = 0; t < kWeightGroup; ++t) {
    const CodePlace place = PlaceOf(format, output, t);
    out.codes[t] = CodeOf(format, static_cast<int>(codes[place.byte]) >> place.shift);
  }
  return out;
}

void UnpackGroupRow(WeightFormat format, const std::byte* panel, std::int64_t output, std::int64_t k, float* out) {
  for (std::int64_t first = 0; first < k; first += kWeightGroup) {
    const OutputGroup group = ReadGroup(format, panel, output, first / kWeightGroup);
    for (std::int64_t t = 0; t < std::min(kWeightGroup, k - first); ++t) {
      out[first + t] = group.scale * static_cast<float>(group.codes[t] - group.zero) + group.minimum;
    }
  }
}

}  // namespace loramux
