// When a load that the catalogue wants, and that failed, is tried again.
#pragma once

#include "base/clock.h"
#include "base/result.h"
#include "etcd/catalogue.h"

namespace loramux {

// When to try a name again: after 1 s, then twice as long each time, up to a minute; up to an hour if each try fetches
// the same content from afar (s3://, hf://) to refuse it again. Another entry begins anew. A plain value.
class CatalogueRetry {
 public:
  // A load of this entry failed.
  void Failed(const FleetAdapter& entry, const Error& error, TimeNs now);
  // When the entry is to be tried again. REQUIRES: Failed was called.
  TimeNs at() const { return at_; }

 private:
  FleetAdapter entry_;  // the entry that failed last
  int failures_ = 0;    // its failures in a row
  TimeNs at_ = 0;
};

}  // namespace loramux
