// How the elements of a weight matrix are stored: the name of a format, and its size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "formats/dtype.h"

namespace loramux {

// Floats, or integers in groups of kWeightGroup neighbouring inputs of an output:
//   kQ8  8 bits and a float16 scale: value = scale * (code - 128)
//   kQ4  4 bits, a float16 scale and a float16 minimum: value = scale * code + minimum
//   kMx4 4 bits and a float16 scale: value = scale * (kMx4Codes[code] - 128). MXFP4's floats of 4 bits, twice as large,
//        with half their scale
//   kF8  8 bits, a float8_e4m3fn, and a float32 scale: value = scale * code. On devices alone
enum class WeightFormat : std::uint8_t { kF32, kBF16, kF16, kQ8, kQ4, kMx4, kF8 };

// The inputs that share a scale. The last group of an output may have fewer.
inline constexpr std::int64_t kWeightGroup = 32;
// The code of zero in kQ8.
inline constexpr int kQ8Zero = 128;
// The codes of kQ8 for the 16 values of kMx4: 0, 1, 2, 3, 4, 6, 8, 12 more than zero, then as many less.
inline constexpr std::uint8_t kMx4Codes[16] = {128, 129, 130, 131, 132, 134, 136, 140,
                                               128, 127, 126, 125, 124, 122, 120, 116};

// The format of floats of this type. REQUIRES: IsWeightDType(dtype).
WeightFormat FormatOf(DType dtype);
constexpr bool IsQuantised(WeightFormat format) { return format >= WeightFormat::kQ8; }
// Whether zero has the code kQ8Zero, and there are no minima.
constexpr bool IsCentred(WeightFormat format) { return format == WeightFormat::kQ8 || format == WeightFormat::kMx4; }
// The type of the floats. REQUIRES: !IsQuantised(format).
DType DTypeOf(WeightFormat format);

// Groups of an output of `k` inputs.
constexpr std::int64_t WeightGroups(std::int64_t k) { return (k + kWeightGroup - 1) / kWeightGroup; }
// Bytes of one output of `k` inputs, its scales and minima included. Groups count whole.
std::size_t WeightRowBytes(WeightFormat format, std::int64_t k);

// As the command line and reports write it: "bf16", "q4".
const char* WeightFormatName(WeightFormat format);
// The format of this name that weights can be rounded to; nullopt if there is none.
std::optional<WeightFormat> ParseWeightFormat(std::string_view name);

}  // namespace loramux
