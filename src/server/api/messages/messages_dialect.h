// POST /v1/messages: Anthropic's API.
#pragma once

#include <string>
#include <string_view>

#include "server/completion/dialect.h"

namespace loramux {

const Dialect& MessagesDialect();

// Parses a body of POST /v1/messages/count_tokens: the request that the same message would be. Errors as of Parse.
Result<CompletionRequest> ParseMessagesCount(std::string_view body, const RequestLimits& limits);
// Returns the body of the answer.
std::string MessagesCountBody(std::int64_t input_tokens);

}  // namespace loramux
