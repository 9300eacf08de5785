// What the translations from and to other dialects share.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "http/json_reader.h"
#include "server/api/openai/chat_fields.h"
#include "server/api/openai/request_fields.h"

namespace loramux {

// A field that a translation reads itself, ignores or refuses. A body's other fields are those of the chat or
// completion that it becomes (RequestFields). openapi.json lists both.
struct DialectField {
  std::string_view name;
  FieldUse use = FieldUse::kServed;
  std::string_view schema = "{}";  // JSON schema of a served field
  std::string_view hint = {};      // what it does, or what to do instead; a phrase that ends a sentence; may be empty
  // For kRefused: the JSON value that asks for nothing besides false, "", [] and {}; empty: no other.
  std::string_view neutral = {};
};

// Records an error for each refused field of the table that is present and asks for something.
void RefuseFields(FieldReader& fields, std::span<const DialectField> table);

// Appends the fields of `from`, except those of the table, to `to`, as they are. The translated request so keeps what
// both dialects share, and the parser of the internal request refuses what it would refuse there.
void PassOn(Json& from, std::span<const DialectField> table, Json& to);

// Reads the content of a chat message: a string, or an array of text parts whose type is in `types`. `where` names the
// value in errors. False after an error.
bool ReadContent(FieldReader& fields, const Json& value, const std::string& where,
                 std::initializer_list<std::string_view> types, Json& content);

// Adds a text part to the content of a chat message: a string while it has one part, and then an array.
void AddPart(Json& content, std::string text);

// Returns the content of a chat message as one text, whose parts line breaks join.
std::string JoinedText(const Json& content);

// Adds a part to a text of parts that are joined by line breaks.
void AppendPart(std::string& text, bool& any, std::string_view part);

// Returns the name of item `index` of `list`: "input[2]".
std::string ItemName(std::string_view list, std::size_t index);

// Returns a server-sent event with a name of its own.
std::string NamedEvent(std::string_view name, const Json& data);

}  // namespace loramux
