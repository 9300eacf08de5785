// Whether a router trusts a server. Only connection errors and time-outs count against it, never an answer: a 500 or a
// 429 comes from a server that is there. Time is an argument.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace loramux {

// Part of DispatcherOptions.
struct HealthOptions {
  int failures_to_eject = 3;
  TimeNs ejection = 10 * kNsPerSecond;
  TimeNs slow_start = 10 * kNsPerSecond;
};

// The health of one server. Not thread-safe.
class ServerHealth {
 public:
  // `joined`: when the router began to use it. `slow`: it grows to its full share from then on.
  ServerHealth(const HealthOptions& options, TimeNs joined, bool slow);

  // A request that was sent at `sent_at` was answered. One sent after the ejection, in panic mode, ends it.
  void Succeeded(TimeNs sent_at, TimeNs now);
  // A connection error, a time-out, or a stream that broke.
  void Failed(TimeNs now);
  // A probe's result. So many failures in a row eject, and the server stays out until a probe succeeds.
  void Probed(bool healthy, TimeNs now);
  // The server is another process than before: nothing of the past counts, and its caches are cold.
  void Restarted(TimeNs now);

  bool Ejected(TimeNs now) const { return down_ || now < ejected_until_; }
  // Seconds until the ejection ends; 0: with the next good probe.
  double SecondsLeft(TimeNs now) const;
  // The share of a full server's load that it may get: from kFirstShare, growing evenly over the slow start.
  double Share(TimeNs now) const;
  std::int64_t failures() const { return failures_; }
  std::int64_t ejections() const { return ejections_; }

  static constexpr double kFirstShare = 0.1;

 private:
  void Eject(TimeNs now);

  HealthOptions options_;
  int failed_requests_ = 0, failed_probes_ = 0;  // in a row
  bool down_ = false;                            // probes failed, none succeeded since
  TimeNs ejected_at_ = 0, ejected_until_ = 0;
  int doublings_ = 0;  // of the next ejection
  TimeNs grows_from_;  // start of the slow start
  std::int64_t failures_ = 0, ejections_ = 0;
};

}  // namespace loramux
