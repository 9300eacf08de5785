// What the translations from and to other dialects share.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "http/json_reader.h"

namespace loramux {

// Records an error for each of these fields that is present and not empty (false, "", [] and {} are empty).
// `instead` follows the message, such as "use `input`"; empty: "leave it out".
void RefuseFields(FieldReader& fields, std::span<const std::string_view> names, std::string_view instead = {});

// Appends the fields of `from`, except the ones in `own`, to `to`, as they are. The translated request so keeps what
// both dialects share, and the parser of the internal request refuses what it would refuse there.
void PassOn(Json& from, std::span<const std::string_view> own, Json& to);

// Reads a text: a string, or an array of parts {"type", "text"} whose type is in `types`. Parts are joined by line
// breaks, as in a chat. `where` names the value in errors. False after an error.
bool ReadTextOrParts(FieldReader& fields, const Json& value, const std::string& where,
                     std::initializer_list<std::string_view> types, std::string& text);

// Adds a part to a text of parts that are joined by line breaks.
void AppendPart(std::string& text, bool& any, std::string_view part);

// Returns the name of item `index` of `list`: "input[2]".
std::string ItemName(std::string_view list, std::size_t index);

// Returns a server-sent event with a name of its own.
std::string NamedEvent(std::string_view name, const Json& data);

}  // namespace loramux
