// For benchmarks and tests, which cannot go on after an error.
#pragma once

#include <utility>

#include "base/check.h"
#include "base/result.h"

namespace loramux {

// The value; an error ends the process with its message.
template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) CheckFailed(__FILE__, __LINE__, result.error().message);
  return std::move(result).value();
}
inline void Must(const Status& status) {
  if (!status.ok()) CheckFailed(__FILE__, __LINE__, status.error().message);
}

}  // namespace loramux
