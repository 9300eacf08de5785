// History that is fetched from the host tier before its request has a seat.
#pragma once

#include <cstdint>

#include "schedule/plan/step_draft.h"

namespace loramux {

// Plans fetches for waiting requests without a seat, in the order of service: once per request, into pages that are
// free or that no request within `lookahead` wants. All requests before the one at hand are left the pages that they
// will need. A request that memory blocks may fetch, because it needs these pages anyway; requests behind it may not.
// No step waits for such a fetch. Does not own the draft.
class FetchAhead {
 public:
  explicit FetchAhead(StepDraft& draft) : draft_(draft) {}
  void Plan();

 private:
  // True if this step may fetch for some request.
  bool AnyCandidate() const;
  // True if a fetch for the request would help it: the end of its history is only in the host tier, and its adapter is
  // on the device. Uses the last result of FindTail: pages added since then were computed since then, on the device.
  bool IsCandidate(const Request& request) const;
  // Fetches as many pages for the request as there is room for: the first part of the path. False: there is no room for
  // any request.
  bool TryFetch(Request* request);

  StepDraft& draft_;
};

}  // namespace loramux
