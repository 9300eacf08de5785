// Strict, bounded parsing of JSON from clients that may be hostile. Errors name the field.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace loramux {

// JSON. Objects keep the order of their keys, so that chat templates print tool schemas as the client wrote them.
using Json = nlohmann::ordered_json;

// Limits of one document, and the wording of its errors.
struct JsonLimits {
  int max_depth = 64;  // nesting of arrays and objects
  // Values of any type in the document.
  std::size_t max_values = std::size_t{1} << 20;
  // Characters between the quotes of one string, escapes as they are written. Checked before anything is parsed.
  std::size_t max_string = std::numeric_limits<std::size_t>::max();
  std::string why_strings_are_short = {};         // ends the error about a longer one
  std::string_view subject = "The request body";  // how errors name the document
  bool quote = true;                              // errors may quote the document; false for documents with secrets
  bool last_key_wins = false;  // the last of equal keys in an object counts; false: equal keys are an error
  const std::atomic<bool>* gone = nullptr;  // turns true once the client is gone; null: never
};

// The error of work that stopped because its client is gone.
Error ClientIsGone();

// Parses one document. Refuses malformed JSON, invalid UTF-8, numbers beyond double, duplicate keys, and more nesting
// or values than `limits` allow. Time is O(n log n) in the text's length; nesting causes no recursion.
Result<Json> ParseJson(std::string_view text, const JsonLimits& limits = {});

// Parses a JSON object that a model wrote, such as the arguments of a call. Models repeat keys: the last one wins, as
// in Python and JavaScript. Empty text is an empty object.
Result<Json> ParseModelObject(std::string_view text);

// Parses the body of a request, which must be one JSON object.
Result<Json> ParseRequestBody(std::string_view body, const JsonLimits& limits = {});

// Serialises without white space. Never throws: invalid UTF-8 becomes U+FFFD.
std::string DumpJson(const Json& value);

// Describes a value briefly for error messages: `"hot"`, `-1`, `an array of 3`.
std::string DescribeJson(const Json& value);

// Typed access to the fields of one object. The first error is kept and names the field; null counts as absent. Every
// getter returns true and sets the value if the field is present and valid, and leaves the value alone otherwise. The
// object must outlive the reader.
class FieldReader {
 public:
  // `where` precedes field names in messages, e.g. "messages[2]."; empty at the top level. REQUIRES:
  // object.is_object().
  FieldReader(const Json& object, std::string where);

  // Returns the field, or null if it is absent or JSON null.
  const Json* Find(std::string_view name) const;

  // Reads true or false.
  bool Boolean(std::string_view name, bool& value);
  // Reads a whole number in [min, max]; see AsInteger.
  bool Integer(std::string_view name, std::int64_t min, std::int64_t max, std::int64_t& value);
  // Reads a number in [min, max]; `open_min` excludes `min`.
  bool Number(std::string_view name, double min, double max, bool open_min, float& value);
  // Reads a string.
  bool String(std::string_view name, std::string& value);
  // Reads an array of at most `max_count` whole numbers in [min, max].
  bool Integers(std::string_view name, std::int64_t min, std::int64_t max, std::size_t max_count,
                std::vector<std::int32_t>& values);
  // Return the array or object itself; null if it is absent. Another type is an error and returns null too.
  const Json* Array(std::string_view name);
  const Json* Object(std::string_view name);

  // Records the error "`name`: expected <expected>, found <found>", unless there is one already.
  void Expect(std::string_view name, std::string_view expected, const Json* found);
  // Records any other error about a field, unless there is one already.
  void Fail(ErrorCode code, std::string_view name, std::string message);

  // True if no error was recorded.
  bool ok() const { return !error_.has_value(); }
  // The first error. REQUIRES: !ok().
  const Error& error() const { return *error_; }
  // Returns `where` + `name`.
  std::string FullName(std::string_view name) const { return where_ + std::string(name); }

 private:
  std::vector<std::pair<std::string_view, const Json*>> fields_;  // sorted by name
  std::string where_;
  std::optional<Error> error_;
};

// Returns the value as a whole number; nullopt if it is none or does not fit. 5 and 5.0 are whole numbers, 5.5 and "5"
// are not.
std::optional<std::int64_t> AsInteger(const Json& value);

}  // namespace loramux
