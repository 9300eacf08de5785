// The request fields from which a chat prompt is built: messages, tools and the other template variables. Used by
// /v1/chat/completions and /tokenize.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "http/json_reader.h"
#include "server/completion/completion_request.h"

namespace loramux {

// Reads the text of a part of a message: a plain string, or {"type", "text"} with a type of `types`, or {"type":
// "refusal", "refusal"} if that is one of them. `where` names the part in errors. False after an error.
bool ReadTextPart(const Json& part, FieldReader& fields, const std::string& where,
                  std::initializer_list<std::string_view> types, std::string& text);

// Reads the chat fields from `body` into `prompt`. `fields` must read the same `body`, and receives the errors. More
// than `max_messages` messages are an error. Moves the messages out of `body`, so call this last.
void ReadChatPrompt(Json& body, FieldReader& fields, std::int64_t max_messages, ChatPrompt& prompt);

}  // namespace loramux
