// Tables of factors as JSON: [[tokens, factor], ...], in profiles and recordings. No public header includes this one,
// because it exposes the JSON library.
#pragma once

#include <string>
#include <vector>

#include "costs/performance_profile.h"
#include "formats/json_fields.h"

namespace loramux {

// Writes a table. `Json` is a type of the JSON library.
template <typename Json>
Json FactorsAsJson(const std::vector<StepFactor>& factors) {
  Json list = Json::array();
  for (const StepFactor& at : factors) list.push_back(Json::array({at.tokens, at.factor}));
  return list;
}

// Reads a table from an untrusted value. Error: not a list of at most kMaxFactors pairs, ascending by tokens and within
// the bounds; the message begins with `label`, the name of the field.
inline Result<std::vector<StepFactor>> FactorsFromJson(const nlohmann::json& value, const std::string& label) {
  const auto bad = [&](const nlohmann::json& found) {
    return InvalidArgument(label + ": expected a list of at most " + std::to_string(kMaxFactors) +
                           " pairs of tokens and a factor from " + nlohmann::json(kMinFactor).dump() + " to " +
                           nlohmann::json(kMaxFactor).dump() + ", ascending by tokens, found " + Describe(found));
  };
  if (!value.is_array() || value.size() > kMaxFactors) return bad(value);
  std::vector<StepFactor> factors;
  for (const nlohmann::json& item : value) {
    if (!item.is_array() || item.size() != 2) return bad(item);
    const auto tokens = FiniteNumber(item[0]), factor = FiniteNumber(item[1]);
    const bool sane = tokens && factor && *tokens >= 1 && *tokens <= kMaxFactorTokens && *factor >= kMinFactor &&
                      *factor <= kMaxFactor;
    if (!sane || (!factors.empty() && *tokens <= factors.back().tokens)) return bad(item);
    factors.push_back({*tokens, *factor});
  }
  return factors;
}

}  // namespace loramux
