// Reads configuration from untrusted JSON: bounded nesting, typed fields, errors that name the field. For source files
// only; no public header includes this one, because it exposes the JSON library.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/result.h"

namespace loramux {

// For each member of the top-level object that is an object itself: its distinct keys in file order. Parsed JSON
// objects do not keep the order, but the order of rank_pattern matters.
using MemberKeyOrder = std::map<std::string, std::vector<std::string>, std::less<>>;

// The text with an object in place of Infinity outside of texts, as transformers 5 writes it: Python writes what JSON
// does not have.
std::string WithoutInfinity(std::string_view text);

// Parses a text that must be one JSON object, nested at most kMaxJsonDepth deep, and nothing after it. Of equal keys
// the last one counts, as in Python. `label` names the source in errors. `order`, if given, receives the keys of the
// members.
Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& label,
                                       MemberKeyOrder* order = nullptr);

// The value for the "found" part of an error message: `"yarn"`, `12`, `an array`.
std::string Describe(const nlohmann::json& value);

// Whether an option is switched off: null, false, or an empty string, array or object.
bool IsOff(const nlohmann::json& value);

// Typed access to the fields of one object; null counts as absent. Keeps a reference to the object.
class JsonFields {
 public:
  // `label` is the prefix of error messages, e.g. "DIR/config.json: " or "DIR/config.json: rope_scaling.".
  JsonFields(const nlohmann::json& object, std::string label) : object_(object), label_(std::move(label)) {}

  // The field; null if it is absent or null.
  const nlohmann::json* Find(const char* key) const;
  bool Has(const char* key) const { return Find(key) != nullptr; }
  // Whether the field is present and null.
  bool IsExplicitNull(const char* key) const;

  // The field as an integer. Error: it is present and not an integer in [low, high] (RequiredInt: or absent).
  Result<std::optional<std::int64_t>> Int(const char* key, std::int64_t low, std::int64_t high) const;
  Result<std::int64_t> RequiredInt(const char* key, std::int64_t low, std::int64_t high) const;
  Result<std::int64_t> IntOr(const char* key, std::int64_t low, std::int64_t high, std::int64_t fallback) const;
  // The field as a number. Error: it is present and not a finite number.
  Result<std::optional<double>> Number(const char* key) const;
  // The field as a boolean (string). Error: it is present and of another type.
  Result<bool> BoolOr(const char* key, bool fallback) const;
  Result<std::optional<std::string>> String(const char* key) const;

  // The error for a field with a wrong value (a missing field).
  Error Bad(const char* key, const std::string& expected) const;
  Error Missing(const char* key, const std::string& expected) const;
  const std::string& label() const { return label_; }

 private:
  const nlohmann::json& object_;
  std::string label_;
};

// The value as a finite number; nullopt if it is none.
std::optional<double> FiniteNumber(const nlohmann::json& value);
// The value as an integer in [low, high]; nullopt if it is none. 8.0 is not an integer.
std::optional<std::int64_t> IntegerIn(const nlohmann::json& value, std::int64_t low, std::int64_t high);

}  // namespace loramux
