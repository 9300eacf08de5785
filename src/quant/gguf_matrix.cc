#include "quant/gguf_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/check.h"
#include "quant/mxfp4.h"
#include "quant/quantise.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

// Numbers of the types, as in gguf_file.cc.
enum Type : std::uint32_t {
  kTypeF32 = 0,
  kTypeF16 = 1,
  kTypeQ4_0 = 2,
  kTypeQ4_1 = 3,
  kTypeQ5_0 = 6,
  kTypeQ5_1 = 7,
  kTypeQ8_0 = 8,
  kTypeQ4_K = 12,
  kTypeQ5_K = 13,
  kTypeQ6_K = 14,
  kTypeBF16 = 30,
  kTypeMXFP4 = 39,
};

constexpr std::int64_t kSmallBlock = 32, kBigBlock = 256;

int ByteAt(const std::byte* at, std::int64_t index) { return static_cast<int>(at[index]); }

float HalfAt(const std::byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return F16ToF32(bits);
}

// ---- blocks of 32: a float16 scale, in some types a float16 minimum, in some 32 fifth bits, then the codes

// Code `t` of a block of 4 bits: the first 16 in the low halves of the bytes.
int NibbleAt(const std::byte* nibbles, std::int64_t t) {
  const int byte = ByteAt(nibbles, t % 16);
  return t < 16 ? byte & 0xf : byte >> 4;
}

int FifthBit(const std::byte* bits, std::int64_t t) { return ByteAt(bits, t / 8) >> (t % 8) & 1; }

int SignedAt(const std::byte* at, std::int64_t t) { return static_cast<std::int8_t>(at[t]); }

// As in memory, where scales are float16.
Mx4Group MxGroupOf(const std::byte* block) {
  Mx4Group group = ReadMx4Group(static_cast<std::uint8_t>(block[0]), block + 1, /*halves=*/true);
  if (static_cast<int>(block[0]) > kMostMx4Exponent) group.scale = std::numeric_limits<float>::quiet_NaN();
  return group;
}

void ReadSmallBlock(std::uint32_t type, const std::byte* block, float* out) {
  if (type == kTypeMXFP4) {
    const Mx4Group group = MxGroupOf(block);
    for (std::int64_t t = 0; t < kSmallBlock; ++t) {
      out[t] = group.scale * static_cast<float>(static_cast<int>(group.codes[t]) - kQ8Zero);
    }
    return;
  }
  const float scale = HalfAt(block);
  const float minimum = type == kTypeQ4_1 || type == kTypeQ5_1 ? HalfAt(block + 2) : 0.0f;
  for (std::int64_t t = 0; t < kSmallBlock; ++t) {
    switch (type) {
      case kTypeQ4_0:
        out[t] = scale * static_cast<float>(NibbleAt(block + 2, t) - 8);
        break;
      case kTypeQ4_1:
        out[t] = scale * static_cast<float>(NibbleAt(block + 4, t)) + minimum;
        break;
      case kTypeQ5_0:
        out[t] = scale * static_cast<float>((NibbleAt(block + 6, t) | FifthBit(block + 2, t) << 4) - 16);
        break;
      case kTypeQ5_1:
        out[t] = scale * static_cast<float>(NibbleAt(block + 8, t) | FifthBit(block + 4, t) << 4) + minimum;
        break;
      default:
        CHECK_EQ(type, static_cast<std::uint32_t>(kTypeQ8_0));
        out[t] = scale * static_cast<float>(SignedAt(block + 2, t));
    }
  }
}

// ---- blocks of 256: Q4_K and Q5_K have eight groups of 32 with scales and minimums of 6 bits, Q6_K sixteen of 16

struct SixBits {
  int scale, minimum;
};

// The 12 bytes hold eight scales and eight minimums: those of the first four groups in the low 6 bits of a byte each,
// those of the others as 4 bits, with their upper 2 bits in the spare bits of the first eight bytes.
SixBits ScaleOf(const std::byte* packed, std::int64_t group) {
  if (group < 4) return {ByteAt(packed, group) & 63, ByteAt(packed, group + 4) & 63};
  const int low = ByteAt(packed, group + 4);
  return {(low & 0xf) | (ByteAt(packed, group - 4) >> 6) << 4, (low >> 4) | (ByteAt(packed, group) >> 6) << 4};
}

// The scale and minimum of a group of Q4_K or Q5_K: value = scale * code - minimum.
struct ScaledGroup {
  float scale, minimum;
};

ScaledGroup GroupOf(const std::byte* block, std::int64_t group) {
  const SixBits bits = ScaleOf(block + 4, group);
  return {HalfAt(block) * static_cast<float>(bits.scale), HalfAt(block + 2) * static_cast<float>(bits.minimum)};
}

// Code `t` of a group: pairs of groups share 32 bytes.
int GroupNibble(const std::byte* nibbles, std::int64_t group, std::int64_t t) {
  const int byte = ByteAt(nibbles, group / 2 * 32 + t);
  return group % 2 == 0 ? byte & 0xf : byte >> 4;
}

void ReadFourOrFive(std::uint32_t type, const std::byte* block, float* out) {
  const std::byte* const high = block + 16;
  const std::byte* const nibbles = type == kTypeQ5_K ? high + 32 : high;
  for (std::int64_t group = 0; group < 8; ++group) {
    const ScaledGroup map = GroupOf(block, group);
    for (std::int64_t t = 0; t < 32; ++t) {
      int code = GroupNibble(nibbles, group, t);
      if (type == kTypeQ5_K) code |= (ByteAt(high, t) >> group & 1) << 4;
      out[group * 32 + t] = map.scale * static_cast<float>(code) - map.minimum;
    }
  }
}

// 128 bytes of low halves, 64 of two upper bits, 16 scales of 8 bits, a float16. Each half of the block has four
// strands of 32 codes.
void ReadSix(const std::byte* block, float* out) {
  const std::byte *low = block, *high = block + 128, *scales = block + 192;
  const float scale = HalfAt(block + 208);
  for (std::int64_t t = 0; t < kBigBlock; ++t) {
    const std::int64_t half = t / 128, strand = t % 128 / 32, in_strand = t % 32;
    const int byte = ByteAt(low, half * 64 + strand % 2 * 32 + in_strand);
    const int four = strand < 2 ? byte & 0xf : byte >> 4;
    const int two = ByteAt(high, half * 32 + in_strand) >> (2 * strand) & 3;
    out[t] = scale * static_cast<float>(SignedAt(scales, t / 16)) * static_cast<float>((four | two << 4) - 32);
  }
}

// ---- groups

struct Destination {
  std::uint8_t* codes;
  float *scale, *minimum;
};

// Sets the scale and minimum of a group, rounded to float16; where one is not finite, the group becomes NaN.
void SetMap(float scale, float minimum, const Destination& to) {
  *to.scale = F16ToF32(F32ToF16(scale));
  *to.minimum = F16ToF32(F32ToF16(minimum));
  if (std::isfinite(*to.scale) && std::isfinite(*to.minimum)) return;
  *to.scale = std::numeric_limits<float>::quiet_NaN();
  *to.minimum = 0;
}

// A group of a block whose integers the formats hold.
void CopyGroup(std::uint32_t type, const std::byte* block, std::int64_t group, const Destination& to) {
  if (type == kTypeQ4_K) {
    const ScaledGroup map = GroupOf(block, group);
    SetMap(map.scale, -map.minimum, to);
    for (std::int64_t t = 0; t < 32; ++t) to.codes[t] = static_cast<std::uint8_t>(GroupNibble(block + 16, group, t));
    return;
  }
  if (type == kTypeMXFP4) {
    const Mx4Group mx4 = MxGroupOf(block);
    *to.scale = mx4.scale;
    *to.minimum = -static_cast<float>(kQ8Zero) * mx4.scale;
    std::ranges::copy(mx4.codes, to.codes);
    return;
  }
  const float scale = HalfAt(block);
  const bool wide = type == kTypeQ8_0 || type == kTypeQ5_0;
  *to.scale = scale;
  if (wide) {
    *to.minimum = -static_cast<float>(kQ8Zero) * scale;
  } else {
    SetMap(scale, type == kTypeQ4_0 ? -8 * scale : HalfAt(block + 2), to);
  }
  for (std::int64_t t = 0; t < 32; ++t) {
    int code = 0;
    if (type == kTypeQ8_0) code = SignedAt(block + 2, t) + kQ8Zero;
    if (type == kTypeQ5_0) code = (NibbleAt(block + 6, t) | FifthBit(block + 2, t) << 4) - 16 + kQ8Zero;
    if (type == kTypeQ4_0) code = NibbleAt(block + 2, t);
    if (type == kTypeQ4_1) code = NibbleAt(block + 4, t);
    to.codes[t] = static_cast<std::uint8_t>(code);
  }
}

bool HoldsGroups(std::uint32_t type) {
  return type == kTypeMXFP4 || type == kTypeQ8_0 || type == kTypeQ5_0 || type == kTypeQ4_0 || type == kTypeQ4_1 ||
         type == kTypeQ4_K;
}

WeightFormat FormatOfType(std::uint32_t type) {
  switch (type) {
    case kTypeF32:
      return WeightFormat::kF32;
    case kTypeF16:
      return WeightFormat::kF16;
    case kTypeBF16:
      return WeightFormat::kBF16;
    case kTypeQ4_0:
    case kTypeQ4_1:
    case kTypeQ4_K:
      return WeightFormat::kQ4;
    case kTypeMXFP4:
      return WeightFormat::kMx4;
    default:
      return WeightFormat::kQ8;
  }
}

class GgufMatrix : public StoredMatrix {
 public:
  GgufMatrix(const GgufTensor& tensor, std::int64_t interleaved_head)
      : StoredMatrix(tensor.name, tensor.shape.size() == 3 ? tensor.shape[0] * tensor.shape[1] : tensor.shape[0],
                     tensor.shape.back()),
        tensor_(tensor),
        head_(interleaved_head),
        row_bytes_(tensor.data.size() / static_cast<std::size_t>(rows())) {}

  std::int64_t bytes() const override { return static_cast<std::int64_t>(tensor_.data.size()); }
  WeightFormat format() const override { return FormatOfType(tensor_.type->id); }
  std::optional<Kept> kept() const override {
    return HoldsGroups(tensor_.type->id) ? std::optional(Kept{format()}) : std::nullopt;
  }

  void ReadFloats(std::int64_t first, std::int64_t count, float* out) const override {
    for (std::int64_t i = 0; i < count; ++i) {
      ReadGguf(*tensor_.type, Row(first + i), columns(), out + i * columns());
    }
  }

  GroupedRows ReadGroups(std::int64_t first, std::int64_t count) const override {
    if (!HoldsGroups(tensor_.type->id)) {
      std::vector<float> floats(static_cast<std::size_t>(count * columns()));
      ReadFloats(first, count, floats.data());
      return Quantise(format(), floats.data(), count, columns());
    }
    GroupedRows out(format(), count, columns());
    const std::int64_t groups_of_block = tensor_.type->block / kWeightGroup;
    for (std::int64_t row = 0; row < count; ++row) {
      const std::byte* const from = Row(first + row);
      for (std::int64_t g = 0; g < out.groups(); ++g) {
        CopyGroup(tensor_.type->id, from + g / groups_of_block * tensor_.type->block_bytes, g % groups_of_block,
                  {out.CodesOf(row) + g * kWeightGroup, out.ScalesOf(row) + g, out.MinimumsOf(row) + g});
      }
    }
    return out;
  }

  std::span<const std::byte> Raw(std::int64_t first, std::int64_t count) const override {
    if (head_ != 0 || IsQuantised(format())) return {};
    return tensor_.data.subspan(static_cast<std::size_t>(first) * row_bytes_,
                                static_cast<std::size_t>(count) * row_bytes_);
  }

 private:
  const std::byte* Row(std::int64_t row) const {
    const std::int64_t stored = head_ == 0 ? row : InterleavedRow(row, head_);
    return tensor_.data.data() + static_cast<std::size_t>(stored) * row_bytes_;
  }

  const GgufTensor& tensor_;
  const std::int64_t head_;
  const std::size_t row_bytes_;
};

}  // namespace

std::int64_t InterleavedRow(std::int64_t row, std::int64_t head_size) {
  const std::int64_t half = head_size / 2, in_head = row % head_size;
  return row - in_head + in_head % half * 2 + in_head / half;
}

void ReadGguf(const GgufType& type, const std::byte* data, std::int64_t count, float* out) {
  CHECK(type.instead == nullptr);
  if (type.block == 1) {
    const DType dtype = DTypeOf(FormatOfType(type.id));
    for (std::int64_t i = 0; i < count; ++i) out[i] = LoadAsF32(dtype, data, i);
    return;
  }
  for (std::int64_t first = 0; first < count; first += type.block, data += type.block_bytes, out += type.block) {
    if (type.block == kSmallBlock) {
      ReadSmallBlock(type.id, data, out);
    } else if (type.id == kTypeQ6_K) {
      ReadSix(data, out);
    } else {
      ReadFourOrFive(type.id, data, out);
    }
  }
}

std::unique_ptr<StoredMatrix> MakeGgufMatrix(const GgufTensor& tensor, std::int64_t interleaved_head) {
  CHECK(tensor.type->instead == nullptr && (tensor.shape.size() == 2 || tensor.shape.size() == 3));
  CHECK(interleaved_head % 2 == 0);
  CHECK(interleaved_head == 0 || tensor.shape[0] % interleaved_head == 0);
  return std::make_unique<GgufMatrix>(tensor, interleaved_head);
}

}  // namespace loramux
