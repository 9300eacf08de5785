#include "cluster/server_health.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace loramux {
namespace {

constexpr TimeNs kMostTimes = 10;  // the longest ejection, in first ejections
// A server that was in use for so many first ejections is trusted as a new one.
constexpr TimeNs kForgivenAfter = 10;
constexpr TimeNs kLongAgo = std::numeric_limits<TimeNs>::min() / 4;

}  // namespace

ServerHealth::ServerHealth(const HealthOptions& options, TimeNs joined, bool slow)
    : options_(options), ejected_until_(kLongAgo), grows_from_(slow ? joined : kLongAgo) {}

void ServerHealth::Succeeded(TimeNs sent_at, TimeNs now) {
  const bool proves = !Ejected(now) || sent_at >= ejected_at_;
  if (!proves) return;
  failed_requests_ = 0;
  if (broken_ > 0) ++unbroken_;
  if (!Ejected(now) || on_trial_) return;  // Worked ends a trial
  down_ = false;
  failed_probes_ = 0;
  ejected_until_ = grows_from_ = now;
}

void ServerHealth::Failed(TimeNs now) {
  ++failures_;
  ++failed_requests_;
  if (broken_ == 0 || now - first_broken_ > options_.error_window) {
    broken_ = unbroken_ = 0;
    first_broken_ = now;
  }
  ++broken_;
  const bool often = options_.errors_to_eject > 0 && broken_ >= options_.errors_to_eject && broken_ >= unbroken_;
  if (!Ejected(now) && (often || failed_requests_ >= options_.failures_to_eject)) Eject(now);
}

void ServerHealth::Worked(TimeNs sent_at, TimeNs now) {
  if (on_trial_ && sent_at < ejected_at_) return;
  errors_ = 0;
  if (!on_trial_) return;
  on_trial_ = down_ = false;
  failed_probes_ = 0;
  trial_sent_at_ = -1;
  ejected_until_ = std::min(ejected_until_, now);  // it was sent in panic mode
  grows_from_ = now;
}

void ServerHealth::Errored(TimeNs sent_at, TimeNs now, bool may_eject) {
  if (options_.errors_to_eject <= 0 || now < ejected_until_ || (on_trial_ && sent_at < ejected_until_)) return;
  if (errors_ == 0 || now - first_error_ > options_.error_window) {
    errors_ = 0;
    first_error_ = now;
  }
  ++errors_;
  if (!may_eject || (!on_trial_ && errors_ < options_.errors_to_eject)) return;
  Eject(now);
  on_trial_ = true;
  errors_ = 0;
}

void ServerHealth::Sent(TimeNs now) {
  if (on_trial_ && trial_sent_at_ < 0 && now >= ejected_until_) trial_sent_at_ = now;
}

void ServerHealth::Ended(TimeNs sent_at) {
  if (trial_sent_at_ == sent_at) trial_sent_at_ = -1;
}

void ServerHealth::Probed(bool healthy, TimeNs now) {
  if (healthy) {
    failed_probes_ = 0;
    if (down_) grows_from_ = std::max(now, ejected_until_);
    down_ = false;
    return;
  }
  ++failures_;
  if (++failed_probes_ < options_.failures_to_eject) return;
  if (!Ejected(now)) Eject(now);
  down_ = true;
}

void ServerHealth::Eject(TimeNs now) {
  if (now - grows_from_ > kForgivenAfter * options_.ejection) doublings_ = 0;
  const TimeNs times = std::min<TimeNs>(TimeNs{1} << std::min(doublings_, 10), kMostTimes);
  ++doublings_;
  ++ejections_;
  ejected_at_ = now;
  ejected_until_ = now + times * options_.ejection;
  grows_from_ = ejected_until_;
  failed_requests_ = options_.failures_to_eject - 1;  // after its return one failure is enough
  trial_sent_at_ = -1;
  broken_ = 0;
}

void ServerHealth::Restarted(TimeNs now) {
  failed_requests_ = failed_probes_ = doublings_ = errors_ = broken_ = 0;
  down_ = on_trial_ = false;
  trial_sent_at_ = -1;
  ejected_until_ = grows_from_ = now;
}

double ServerHealth::SecondsLeft(TimeNs now) const {
  return now < ejected_until_ ? static_cast<double>(ejected_until_ - now) / kNsPerSecond : 0;
}

std::string ServerHealth::Reason(TimeNs now) const {
  const char* const what = on_trial_ ? "errors of its own" : "connection errors";
  if (now < ejected_until_) return fmt::format("ejected after {}, for {:.1f} s more", what, SecondsLeft(now));
  return down_ ? "ejected until a health probe succeeds" : fmt::format("ejected after {} until a trial succeeds", what);
}

double ServerHealth::Share(TimeNs now) const {
  if (options_.slow_start <= 0 || now - grows_from_ >= options_.slow_start) return 1;
  const double grown = static_cast<double>(std::max<TimeNs>(0, now - grows_from_));
  return kFirstShare + (1 - kFirstShare) * grown / static_cast<double>(options_.slow_start);
}

}  // namespace loramux
