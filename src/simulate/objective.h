// What requests are promised, and the count that ends a run which can no longer keep it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/clock.h"
#include "record/run_result.h"

namespace loramux {

// What a request is promised. 0: any time is good enough.
struct ServiceObjective {
  TimeNs ttft = 0;    // time to the first token
  TimeNs token = 0;   // time per token: from arrival to the last token, over the output's tokens
  TimeNs warmup = 0;  // requests that arrive before are not counted
  TimeNs tpot = 0;    // mean time per token after the first; a request with one token keeps it
};

// Time per token of ServiceObjective::token, and TPOT of a request with more than one token, in ns. REQUIRES: the
// request ended.
double TokenTimeOf(const RequestRecord& record);
double TpotOf(const RequestRecord& record);

// What a request got.
struct KeptObjective {
  bool ttft = false, token = false, tpot = false;
  bool All() const { return ttft && token && tpot; }
};
// "TTFT within 2 s, TPOT within 100 ms".
std::string ShowObjective(const ServiceObjective& objective);

// REQUIRES: the request ended.
KeptObjective KeptBy(const RequestRecord& record, const ServiceObjective& objective);

// Share of the requests that must keep the objective for a load to count as sustained.
inline constexpr double kSustainedShare = 0.99;

// When a run is given up, because more requests have missed the objective than may. A run that is not given up is the
// same as one without this rule.
struct GiveUpRule {
  ServiceObjective objective;
  std::int64_t most_missed = -1;  // -1: never
  // The most that the TTFTs of all requests may sum up to, in ns, for a mean that must be kept; 0: any.
  double most_ttft_sum = 0;
};
// The most of `requests` that may miss, so that a share of at least `share` of them does not. REQUIRES: requests >= 0.
std::int64_t MostMissed(std::int64_t requests, double share);
// The most of `requests` that may miss, so that their 99th percentile (workload/statistics.h) can still keep it.
// REQUIRES: requests >= 0.
std::int64_t MostMissedOfP99(std::int64_t requests);

// Counts the requests of one run that have certainly missed. Each counts once, at the moment from which it is certain.
// Not thread-safe.
class MissCount {
 public:
  // `records` are those of the run, by request; both must outlive the count.
  MissCount(const GiveUpRule& rule, const std::vector<RequestRecord>& records);

  // A request has been asked, and its client will not take it back. REQUIRES: called in the order of arrival.
  void Asked(std::size_t request);
  // Its first token is there.
  void Began(std::size_t request);
  // A request ended: in full, or by a fault of the servers.
  void Ended(std::size_t request);
  void Lost(std::size_t request) {
    EndWait(request, 0);
    Miss(request);
  }
  // Whether the objective is out of reach at this time.
  bool Hopeless(TimeNs now);

 private:
  bool active() const { return rule_.most_missed >= 0; }
  void Miss(std::size_t request);
  // It no longer waits for its first token; `ttft`: what that took, 0 if it never came.
  void EndWait(std::size_t request, TimeNs ttft);

  const GiveUpRule& rule_;
  const std::vector<RequestRecord>& records_;
  std::vector<bool> counted_;        // by request; empty if not active
  std::deque<std::size_t> awaited_;  // asked, with a deadline for the first token that has not come; by arrival
  std::int64_t missed_ = 0;
  // With most_ttft_sum: those that wait for the first token; the sum of their arrivals, and the TTFTs of the others.
  std::vector<bool> waits_;  // by request
  double waiting_ = 0, arrivals_ = 0, ttfts_ = 0;
};

}  // namespace loramux
