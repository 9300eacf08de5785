#include "text/c_interface.h"

namespace loramux::text_internal {
namespace {

ErrorCode ToErrorCode(loramux_text_status status) {
  switch (status) {
    case LORAMUX_TEXT_INVALID:
      return ErrorCode::kInvalidArgument;
    case LORAMUX_TEXT_EXHAUSTED:
      return ErrorCode::kResourceExhausted;
    case LORAMUX_TEXT_UNAVAILABLE:
      return ErrorCode::kUnavailable;
    case LORAMUX_TEXT_UNSUPPORTED:
      return ErrorCode::kUnsupported;
    default:
      return ErrorCode::kInternal;
  }
}

}  // namespace

Error ToError(loramux_text_status status, const Buffer& message, std::string_view where) {
  std::string text = where.empty() ? "" : std::string(where) + ": ";
  return {ToErrorCode(status), text + message.ToString(), {}};
}

}  // namespace loramux::text_internal
