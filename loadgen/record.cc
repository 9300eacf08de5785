#include "loadgen/record.h"

namespace loramux::load {

const char* FailureName(Failure failure) {
  switch (failure) {
    case Failure::kNone:
      return "none";
    case Failure::kConnect:
      return "connect";
    case Failure::kTimeout:
      return "timeout";
    case Failure::kHttpStatus:
      return "http_status";
    case Failure::kStreamError:
      return "stream_error";
    case Failure::kCutOff:
      return "cut_off";
    case Failure::kMalformed:
      return "malformed";
    case Failure::kWrongAnswer:
      return "wrong_answer";
    case Failure::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

std::string RequestRecord::failure_kind() const {
  if (failure == Failure::kHttpStatus) return "http_" + std::to_string(http_status);
  return FailureName(failure);
}

}  // namespace loramux::load
