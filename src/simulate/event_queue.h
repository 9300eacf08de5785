// Future events on the virtual clock, totally ordered by time, then kind, then insertion.
#pragma once

#include <cstdint>
#include <queue>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "base/clock.h"

namespace loramux {

// Order of events at the same time: completions come before what happens to servers and what routers hear, and those
// before new work.
enum class EventKind : std::uint8_t {
  kTransferEnds,
  kStepEnds,
  kMove,
  // Only in fleets.
  kFault,
  kSnapshotMade,
  kSnapshotHeard,
  kProbe,
  // In all simulations.
  kArrival,
  kCancel,
  kSample,
};

// One event.
struct Event {
  TimeNs at = 0;
  EventKind kind = EventKind::kArrival;
  std::uint64_t sequence = 0;
  std::int64_t subject =
      0;                    // the request of an arrival or a cancellation; in fleets also a fault, a snapshot, a router
  std::int32_t server = 0;  // index of a fleet's server
};

// A priority queue of events. Not thread-safe.
class EventQueue {
 public:
  // Adds an event; of equal times and kinds, the first one pushed comes first.
  void Push(TimeNs at, EventKind kind, std::int64_t subject = 0, std::int32_t server = 0) {
    events_.push({at, kind, next_sequence_++, subject, server});
  }
  bool empty() const { return events_.empty(); }
  std::size_t size() const { return events_.size(); }
  // The next event. REQUIRES: not empty.
  const Event& first() const { return events_.top(); }
  // Removes and returns the next event. REQUIRES: not empty.
  Event Pop() {
    CHECK(!events_.empty());
    const Event event = events_.top();
    events_.pop();
    return event;
  }

 private:
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return std::tie(a.at, a.kind, a.sequence) > std::tie(b.at, b.kind, b.sequence);
    }
  };
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace loramux
