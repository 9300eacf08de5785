// JSON from clients, which may be hostile: bounded, strict, and with errors that name the field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace loramux {

// Objects keep the order of their keys: chat templates print tool schemas as the client wrote them.
using Json = nlohmann::ordered_json;

struct JsonLimits {
  int max_depth = 64;  // arrays and objects within each other
  std::size_t max_values = std::size_t{1} << 20;
  std::string_view subject = "The request body";  // what errors call the document
  bool quote = true;                              // errors may show pieces of it (not where it holds secrets)
};

// Parses one document. Refused: malformed JSON, invalid UTF-8, numbers beyond double, duplicate keys, more nesting or
// values than `limits`. Time is O(n log n) in the text, and no recursion follows the input.
Result<Json> ParseJson(std::string_view text, const JsonLimits& limits = {});

// The same for the body of a request, which must be one object.
Result<Json> ParseRequestBody(std::string_view body);

// Serialises without white space. Never throws: invalid UTF-8 comes out as U+FFFD.
std::string DumpJson(const Json& value);

// A short description of a value for error messages: `"hot"`, `-1`, `an array of 3`.
std::string DescribeJson(const Json& value);

// Typed access to one object's fields. The first error sticks and names the field; null counts as absent. Every getter
// returns true if the field was present and valid, and leaves the value alone otherwise. The object must outlive it.
class FieldReader {
 public:
  // `where` comes before field names in messages, e.g. "messages[2]."; empty at the top.
  // REQUIRES: object.is_object().
  FieldReader(const Json& object, std::string where);

  // Null if absent or JSON null.
  const Json* Find(std::string_view name) const;

  bool Boolean(std::string_view name, bool& value);
  bool Integer(std::string_view name, std::int64_t min, std::int64_t max, std::int64_t& value);
  // In [min, max]; `open_min` excludes min.
  bool Number(std::string_view name, double min, double max, bool open_min, float& value);
  bool String(std::string_view name, std::string& value);
  // An array of whole numbers in [min, max].
  bool Integers(std::string_view name, std::int64_t min, std::int64_t max, std::size_t max_count,
                std::vector<std::int32_t>& values);
  // The array (or object) itself; null if absent or of another type, which is an error.
  const Json* Array(std::string_view name);
  const Json* Object(std::string_view name);

  // Records "`name`: expected <expected>, found <found>", if it is the first error.
  void Expect(std::string_view name, std::string_view expected, const Json* found);
  // Records any other error about a field.
  void Fail(ErrorCode code, std::string_view name, std::string message);

  bool ok() const { return !error_.has_value(); }
  const Error& error() const { return *error_; }
  std::string FullName(std::string_view name) const { return where_ + std::string(name); }

 private:
  std::vector<std::pair<std::string_view, const Json*>> fields_;  // sorted by name
  std::string where_;
  std::optional<Error> error_;
};

// The value as a whole number (5 and 5.0, not 5.5 or "5"); nullopt if it is none or does not fit.
std::optional<std::int64_t> AsInteger(const Json& value);

}  // namespace loramux
