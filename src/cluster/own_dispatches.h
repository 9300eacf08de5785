// The requests of this router at one server: those that its snapshot counts, and those that came later.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/clock.h"
#include "cluster/route_policy.h"

namespace loramux {

// Not thread-safe.
class OwnDispatches {
 public:
  void Send(std::uint64_t attempt, const RouteRequest& request, TimeNs now);
  // The request if it is one of sent(); null: a snapshot counts it. Valid until the next change.
  const OwnDispatch* FindSent(std::uint64_t attempt) const;
  // When the request was sent. REQUIRES: it has not ended.
  TimeNs SentAt(std::uint64_t attempt) const;
  // The first byte of the answer arrived. False: nothing that the load depends on changed.
  bool Answered(std::uint64_t attempt);
  // When the request was sent; it no longer counts. Unless a snapshot counts it, then it is one of ended() until a
  // newer one comes. REQUIRES: it was sent and has not ended.
  TimeNs End(std::uint64_t attempt, bool has_snapshot, TimeNs now);
  // A snapshot arrived that was true at `as_of`.
  void CountedAt(TimeNs as_of);
  // There is no snapshot any more: every request counts as sent since.
  void CountAll();

  // Sent since the snapshot, oldest first.
  std::span<const OwnDispatch> sent() const { return sent_; }
  // Counted by the snapshot, and ended since; `at` is the end.
  std::span<const OwnDispatch> ended() const { return ended_; }
  // Requests that the snapshot counts, if it arrived just now.
  std::int64_t counted() const { return static_cast<std::int64_t>(counted_.size() + ended_.size()); }
  std::int64_t in_flight() const { return static_cast<std::int64_t>(sent_.size() + counted_.size()); }

 private:
  std::vector<OwnDispatch> sent_;                 // attempts ascend
  std::map<std::uint64_t, OwnDispatch> counted_;  // by attempt, which ascend with time; without prefixes
  std::vector<OwnDispatch> ended_;
};

}  // namespace loramux
