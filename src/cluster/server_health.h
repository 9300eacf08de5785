// Whether a router trusts a server. Connection errors and time-outs count against it, and, in a row, errors of its own
// (500 and the like) and requests that it did not begin. Time is an argument.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace loramux {

// When a server gets no requests, and how it comes back.
struct HealthOptions {
  int failures_to_eject = 3;                // connection errors and time-outs in a row
  int errors_to_eject = 5;                  // server's errors, or not begun, in a row; 0: they never eject
  TimeNs error_window = 30 * kNsPerSecond;  // within which they come
  TimeNs ejection = 10 * kNsPerSecond;      // the first time; doubles with each further one, up to ten times
  TimeNs slow_start = 10 * kNsPerSecond;    // over which a new or returned server grows to its full share
};

// The health of one server. Not thread-safe.
class ServerHealth {
 public:
  // `joined`: when the router began to use it. `slow`: it grows to its full share from then on.
  ServerHealth(const HealthOptions& options, TimeNs joined, bool slow);

  // A request that was sent at `sent_at` was answered. One sent after the ejection, in panic mode, ends it.
  void Succeeded(TimeNs sent_at, TimeNs now);
  // A connection error, a time-out, or a stream that broke. So many in a row eject it; so do `errors_to_eject` of them
  // within the window if no more requests were answered meanwhile.
  void Failed(TimeNs now);
  // A request that was sent at `sent_at` got an answer, or the head of one, that is no error of the server.
  void Worked(TimeNs sent_at, TimeNs now);
  // It got an error of the server, or was not begun. So many in a row, within the window, eject it, if `may_eject`.
  // When the ejection ends, one request at a time is let through, until one works; one that does not ejects the server
  // again, for longer.
  void Errored(TimeNs sent_at, TimeNs now, bool may_eject);
  // A request is sent. Ended must follow.
  void Sent(TimeNs now);
  // The request that was sent then has ended, however.
  void Ended(TimeNs sent_at);
  // A probe's result. So many failures in a row eject, and the server stays out until a probe succeeds.
  void Probed(bool healthy, TimeNs now);
  // The server is another process than before: nothing of the past counts, and its caches are cold.
  void Restarted(TimeNs now);

  bool Ejected(TimeNs now) const { return down_ || now < ejected_until_ || trial_sent_at_ >= 0; }
  // Whether it answers, as far as is known: only its errors keep requests away from it.
  bool Answers() const { return on_trial_ && !down_ && failed_requests_ < options_.failures_to_eject; }
  // Why it gets nothing and for how long, for messages. REQUIRES: Ejected(now).
  std::string Reason(TimeNs now) const;
  // Seconds until the ejection ends; 0: with the next good probe or trial.
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
  int broken_ = 0, unbroken_ = 0;                // requests that failed, and were answered, since first_broken_
  TimeNs first_broken_ = 0;
  bool down_ = false;          // probes failed, none succeeded since
  int errors_ = 0;             // in a row
  TimeNs first_error_ = 0;     // time of the first of these errors
  bool on_trial_ = false;      // errors ejected it, and no request has worked since
  TimeNs trial_sent_at_ = -1;  // when its one request was sent; -1: it has none
  TimeNs ejected_at_ = 0, ejected_until_ = 0;
  int doublings_ = 0;  // times that the next ejection is doubled
  TimeNs grows_from_;  // start of the slow start
  std::int64_t failures_ = 0, ejections_ = 0;
};

}  // namespace loramux
