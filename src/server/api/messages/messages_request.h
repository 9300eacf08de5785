// Translates the bodies of POST /v1/messages and /v1/messages/count_tokens (Anthropic) into chat requests.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "http/json_reader.h"
#include "server/api/translation.h"
#include "server/completion/dialect.h"

namespace loramux {

// The names that fields of a chat request have in this dialect.
std::span<const FieldName> MessagesNames();
// What the translation does with the fields that it does not pass on.
std::span<const DialectField> MessagesFields();

// Translates a parsed body. Errors name the fields of the dialect. `needs_length`: `max_tokens` must be given, as for
// an answer; a count needs none. REQUIRES: `body` is an object.
Result<Json> ChatOfMessages(Json body, bool needs_length);

}  // namespace loramux
