// The bodies of error responses: those of the OpenAI API, as all routes without a form of their own send them.
#pragma once

#include <string>
#include <string_view>

#include "http/json_reader.h"

namespace loramux {

// Returns the error type for an HTTP status, such as "BadRequestError".
inline const char* ErrorType(int status) {
  if (status >= 500) return "InternalServerError";
  switch (status) {
    case 401:
      return "AuthenticationError";
    case 403:
      return "PermissionDeniedError";
    case 404:
      return "NotFoundError";
    case 429:
      return "RateLimitError";
    default:
      return "BadRequestError";
  }
}

// Returns {"error":{"message","type","param","code"}}; the type follows from the status. An ErrorForm.
inline std::string ErrorBody(int status, std::string_view message, std::string_view param) {
  return DumpJson({{"error",
                    {{"message", message},
                     {"type", ErrorType(status)},
                     {"param", param.empty() ? Json() : Json(param)},
                     {"code", status}}}});
}

}  // namespace loramux
