#include "http/error_body.h"

#include "http/json_reader.h"

namespace loramux {

int HttpStatus(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
    case ErrorCode::kResourceExhausted:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kUnavailable:
      return 503;
    case ErrorCode::kRateLimited:
      return 429;
    case ErrorCode::kIoError:
    case ErrorCode::kInternal:
      break;
  }
  return 500;
}

const char* ErrorType(int status) {
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

std::string ErrorBody(int status, std::string_view message, std::string_view param) {
  const char* type = ErrorType(status);
  return DumpJson(
      {{"error",
        {{"message", message}, {"type", type}, {"param", param.empty() ? Json() : Json(param)}, {"code", status}}}});
}

}  // namespace loramux
