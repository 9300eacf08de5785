// Translates the bodies of POST /v1/responses (OpenAI's Responses API, stateless) into chat requests.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "http/json_reader.h"
#include "server/api/translation.h"
#include "server/completion/dialect.h"

namespace loramux {

// The names that fields of a chat request have in this dialect.
std::span<const FieldName> ResponsesNames();
// What the translation does with the fields that it does not pass on.
std::span<const DialectField> ResponsesFields();

// A translated request.
struct ResponsesChat {
  Json chat;    // the chat request
  Json echoed;  // the fields that the answer repeats, with defaults for those that the client left out
  std::vector<std::string> left_out_tools;  // CompletionRequest::left_out_tools
};

// Translates a parsed body. Errors name the fields of the dialect. REQUIRES: `body` is an object.
Result<ResponsesChat> ChatOfResponses(Json body);

}  // namespace loramux
