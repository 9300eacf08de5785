// The bodies of error responses: those of the OpenAI API, as all routes send them.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux {

// Returns the HTTP status for an error: 400, 404, 429, 500 or 503.
int HttpStatus(const Error& error);
// Returns the error type for an HTTP status, such as "BadRequestError".
const char* ErrorType(int status);
// Returns {"error":{"message","type","param","code"}}; the type follows from the status.
std::string ErrorBody(int status, std::string_view message, std::string_view param);

// Writes the body of an error in the form of another API. The arguments are those of ErrorBody. Thread-safe.
using ErrorForm = std::function<std::string(int status, std::string_view message, std::string_view param)>;

}  // namespace loramux
