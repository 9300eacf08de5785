// The table of the fields of request bodies: what the server does with each. A field that changes the output is in the
// table as served or as refused, never ignored. The parsers refuse by it, and names that are close to one of it are
// reported as likely mistakes. To add a field, add a line to the table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "http/json_reader.h"
#include "server/completion/completion_request.h"

namespace loramux {

// What the server does with a field.
enum class FieldUse : std::uint8_t {
  kServed,    // it does what its API says; a parser reads and checks it
  kAccepted,  // it has no effect on the output, so it is ignored
  kRefused,   // 400 by name, except for the values that ask for nothing (RequestField::neutral)
};

// Endpoints that know a field; combined by |.
enum FieldEndpoints : std::uint8_t {
  kChatBody = 1,
  kCompletionBody = 2,
  kBothBodies = 3,  // bodies that generate text
  kEmbeddingBody = 4,
  kClassifyBody = 8,
  kTemplateBodies = 9,  // bodies that may hold a chat
  kInputBodies = 12,    // bodies whose texts are `input`
  kScoreBody = 16,
  kRerankBody = 32,
  kPairBodies = 48,    // bodies that compare texts
  kHeadBodies = 56,    // bodies that an adapter's head answers, if it has one
  kPooledBodies = 60,  // bodies that generate nothing
  kAllBodies = 63,
};

// A value of RequestField::neutral: every value is refused. Null is no value.
inline constexpr std::string_view kOnlyNull = "null";

// One line of the table.
struct RequestField {
  std::string_view name;  // at the top level of the body
  FieldUse use = FieldUse::kServed;
  FieldEndpoints endpoints = kBothBodies;
  // What the field does, or, if it is refused, what to do instead. A phrase that ends a sentence; may be empty.
  std::string_view hint = {};
  // For kRefused: the JSON value that asks for nothing, usually the default of the field's API. It is accepted, as are
  // "", [] and {}. If this is empty: false.
  std::string_view neutral = {};
};

// Returns the whole table, by topic. No name is in it twice for one endpoint.
std::span<const RequestField> RequestFields();

// Records an error for the first field of the body that is refused at `endpoint` (one value).
void RefuseFields(FieldReader& fields, FieldEndpoints endpoint);

// Returns the name of a field or a tool for a header: characters other than letters, digits, '_', '-' and '.' become
// '?'.
std::string PlainName(std::string_view name);

// Returns the fields of `body` that `endpoint` does not know and that are one edit, or only upper case and underscores,
// away from one that it knows. At most 8; time is bounded. REQUIRES: body.is_object().
std::vector<LikelyMistake> LikelyMistakes(const Json& body, FieldEndpoints endpoint);

}  // namespace loramux
