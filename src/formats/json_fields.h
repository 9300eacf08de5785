// Reading configuration from untrusted JSON: bounded nesting, typed fields, errors that name the field. For
// sources that read files; no public header includes this one, since it shows the JSON library.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace loramux {

// Deepest nesting accepted; real configurations stay below 10.
inline constexpr int kMaxJsonDepth = 64;

// For each member of the top-level object that is itself an object: its keys in file order, first occurrences only
// (a JSON object keeps no order once parsed, but rank_pattern's order has a meaning).
using MemberKeyOrder = std::map<std::string, std::vector<std::string>, std::less<>>;

// Parses a text that must be one JSON object. Of equal keys the last counts, as in Python. `label` names the source in
// errors. `order`, if given, receives the keys of the members.
Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& label,
                                       MemberKeyOrder* order = nullptr);

// What a value is, for the "found" part of an error: `"yarn"`, `12`, `an array`.
std::string Describe(const nlohmann::json& value);

// Whether an option is switched off: null, false, or an empty string, array or object.
bool IsOff(const nlohmann::json& value);

// Typed access to the fields of one object; null counts as absent. References the object and the label.
class JsonFields {
 public:
  // `label` is prefixed to errors, e.g. "DIR/config.json: " or "DIR/config.json: rope_scaling.".
  JsonFields(const nlohmann::json& object, std::string label) : object_(object), label_(std::move(label)) {}

  // Null if absent or null.
  const nlohmann::json* Find(const char* key) const;
  bool Has(const char* key) const { return Find(key) != nullptr; }
  bool IsExplicitNull(const char* key) const;

  // Error if present and not an integer in [low, high].
  Result<std::optional<std::int64_t>> Int(const char* key, std::int64_t low, std::int64_t high) const;
  Result<std::int64_t> RequiredInt(const char* key, std::int64_t low, std::int64_t high) const;
  Result<std::int64_t> IntOr(const char* key, std::int64_t low, std::int64_t high, std::int64_t fallback) const;
  // Error if present and not a finite number.
  Result<std::optional<double>> Number(const char* key) const;
  Result<bool> BoolOr(const char* key, bool fallback) const;
  Result<std::optional<std::string>> String(const char* key) const;

  Error Bad(const char* key, const std::string& expected) const;
  Error Missing(const char* key, const std::string& expected) const;
  const std::string& label() const { return label_; }

 private:
  const nlohmann::json& object_;
  std::string label_;
};

// Value of one number that must be finite, wherever it stands.
std::optional<double> FiniteNumber(const nlohmann::json& value);
// Value of one integer in [low, high]; 8.0 is not an integer.
std::optional<std::int64_t> IntegerIn(const nlohmann::json& value, std::int64_t low, std::int64_t high);

}  // namespace loramux
