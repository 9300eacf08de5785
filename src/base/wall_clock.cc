#include "base/wall_clock.h"

#include <chrono>

namespace loramux {

std::int64_t UnixNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace loramux
