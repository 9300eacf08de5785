// How the elements of a weight matrix are stored: the name of a format, and its size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "formats/dtype.h"

namespace loramux {

// The type of an element. Integers are scaled: value = scale * integer.
enum class WeightType : std::uint8_t { kF32, kBF16, kF16, kI8, kI4 };

// A format: plain floats, or integers with one bfloat16 scale for each group of neighbouring inputs of an output.
struct WeightFormat {
  WeightType type = WeightType::kBF16;
  std::int32_t group = 0;  // inputs that share a scale; 0 for floats, which have none

  // The format of floats of this type. REQUIRES: IsWeightDType(dtype).
  static WeightFormat Of(DType dtype);

  bool quantised() const { return type == WeightType::kI8 || type == WeightType::kI4; }
  // Bytes of one output's row of `k` inputs, its scales included.
  std::size_t RowBytes(std::int64_t k) const;
  // As the command line and reports write it: "bf16", "int4:128".
  std::string Name() const;
  // Error: a group for floats; integers without a group, or with one that is not a multiple of 32.
  Status Validate() const;

  friend bool operator==(WeightFormat, WeightFormat) = default;
};

}  // namespace loramux
