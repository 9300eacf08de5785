#include "workload/lengths.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "workload/distributions.h"

namespace loramux {
namespace {

constexpr std::int64_t kMaxLength = 10'000'000;

std::optional<std::int64_t> ParseLength(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMaxLength) return std::nullopt;
  return value;
}

}  // namespace

Result<LengthDistribution> LengthDistribution::Parse(std::string_view text, const std::string& flag) {
  const Error error = InvalidArgument(
      fmt::format("{}: expected a number of tokens from 1 to {}, uniform:LOW:HIGH or exponential:MEAN, found '{}'",
                  flag, kMaxLength, text));
  LengthDistribution result;
  const auto colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  std::string_view rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  std::optional<std::int64_t> low, high;
  if (colon == std::string_view::npos) {
    low = high = ParseLength(name);
  } else if (name == "exponential") {
    result.kind_ = Kind::kExponential;
    low = high = ParseLength(rest);
  } else if (name == "uniform") {
    result.kind_ = Kind::kUniform;
    const auto second = rest.find(':');
    low = ParseLength(rest.substr(0, second));
    if (second != std::string_view::npos) high = ParseLength(rest.substr(second + 1));
  }
  if (!low || !high || *low > *high) return error;
  result.low_ = *low;
  result.high_ = *high;
  return result;
}

std::int64_t LengthDistribution::Draw(Prng& prng) const {
  switch (kind_) {
    case Kind::kFixed:
      return low_;
    case Kind::kUniform:
      return low_ + static_cast<std::int64_t>(prng.NextBelow(static_cast<std::uint64_t>(high_ - low_ + 1)));
    case Kind::kExponential:
      break;
  }
  return std::clamp<std::int64_t>(std::llround(DrawExponential(prng, static_cast<double>(low_))), 1, kMaxLength);
}

}  // namespace loramux
