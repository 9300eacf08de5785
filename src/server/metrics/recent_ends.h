// The sequences that ended since the last look, one by one: what the page Live draws by adapter and by tenant.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/generation.h"

namespace loramux {

// One sequence that has ended. A time is 0 if its event did not happen.
struct SequenceEnd {
  FinishReason reason = FinishReason::kNone;  // kCancelled: the client disconnected
  std::string adapter;                        // empty: the base model
  std::string tenant;                         // as TenantName says; empty: none
  std::int32_t prompt_tokens = 0, generated_tokens = 0;
  TimeNs received = 0;                      // when the HTTP request was received
  TimeNs arrival = 0, first_scheduled = 0;  // at the engine
  TimeNs adapter_wait = 0;                  // the part of the time between them in which its adapter was not there
  TimeNs first_token = 0, last_token = 0, now = 0;
};

// Thread-safe. While it is not watched, an end costs one relaxed load.
class RecentEnds {
 public:
  // What is kept between two looks; further ends are counted only.
  static constexpr std::size_t kMostKept = 256;

  // Whether ends are kept from now on. A change forgets what was kept.
  void Watch(bool on);
  // Keeps a copy of the end if there is room.
  void Add(const SequenceEnd& end);

  struct Taken {
    std::vector<SequenceEnd> ends;  // in the order in which they came
    std::int64_t left_out = 0;      // ends that came besides
  };
  // Returns what came since the last call, and forgets it.
  Taken Take();

 private:
  std::atomic<bool> watched_{false};
  std::mutex mutex_;
  Taken kept_;
};

}  // namespace loramux
