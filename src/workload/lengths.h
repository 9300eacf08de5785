// Distributions of prompt and output lengths, as flags give them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "base/result.h"

namespace loramux {

// A distribution of token counts: "128", "uniform:64:256" (both ends included) or "exponential:128" (the mean; draws
// are at least 1).
class LengthDistribution {
 public:
  // Parses one of these forms. The error names `flag`.
  static Result<LengthDistribution> Parse(std::string_view text, const std::string& flag);
  // Returns one draw.
  std::int64_t Draw(Prng& prng) const;

 private:
  enum class Kind { kFixed, kUniform, kExponential };
  Kind kind_ = Kind::kFixed;
  std::int64_t low_ = 1, high_ = 1;  // kFixed and kExponential use low_
};

}  // namespace loramux
