// How the steps of a device were enqueued.
#pragma once

#include <cstdint>

namespace loramux {

// How steps were enqueued.
struct StepWays {
  std::int64_t eager = 0;     // launch by launch; the first step of a shape too
  std::int64_t recorded = 0;  // launch by launch into a graph, which was then enqueued: the second step of a shape
  std::int64_t replayed = 0;  // as a graph from before
};

}  // namespace loramux
