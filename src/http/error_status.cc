#include "http/error_status.h"

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

}  // namespace loramux
