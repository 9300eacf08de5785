// One router's mind: what it knows of the servers, whom it trusts, and where the next request goes. The data plane
// (router/), Envoy's endpoint picker (envoy/) and the fleet simulator drive the same object. Time is an argument.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "cluster/route_policy.h"
#include "cluster/server_health.h"
#include "cluster/server_snapshot.h"

namespace loramux {

// Options of a Dispatcher.
struct DispatcherOptions {
  std::string policy = "loramux";
  std::shared_ptr<const PerformanceModel> model;  // required: of one server
  bool correct_by_own = true;                     // count the own dispatches since a snapshot
  TimeNs tpot_objective = 0;                      // RouteContext::tpot_objective
  std::int64_t average_answer = 0;                // RouteContext::average_answer
  std::uint64_t seed = 1;                         // seed of all chance
  HealthOptions health;
  double most_ejected = 0.5;                     // share of the servers; beyond it all are used (panic mode)
  double retry_budget = 0.2;                     // retries per request, over a sliding window
  TimeNs snapshot_lifetime = 10 * kNsPerSecond;  // an older snapshot counts as none
};

// How an attempt at a server ended.
enum class AttemptEnd : std::uint8_t {
  kAnswered,      // any response that the server means: 2xx, 4xx, 429, 501, or that it has other content
  kNotStarted,    // the server said that it began nothing (x-loramux-not-started: 1)
  kNoConnection,  // connection refused, reset before a byte, or timed out
  kBroken,        // died after it began
  kCancelled,     // by the client
  kServerError,   // a response with another 5xx, without the header
};
// How an attempt ends that got a whole response with this status, which does not say that nothing began.
inline AttemptEnd EndWithStatus(int status) {
  return status >= 500 && status != 501 ? AttemptEnd::kServerError : AttemptEnd::kAnswered;
}

// Not thread-safe: one thread, or strand, uses it.
class Dispatcher {
 public:
  using Attempt = std::uint64_t;  // names one request at one server

  // Where a request goes.
  struct Decision {
    Attempt attempt = 0;
    std::string server;  // its name
  };

  // Error: an unknown policy.
  static Result<std::unique_ptr<Dispatcher>> Create(DispatcherOptions options);
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  // The servers that exist from now on, by name. One that is gone gets no more requests; its attempts may still end.
  void SetServers(std::span<const std::string> names, TimeNs now);
  // Decisions are computed with this model of one server from now on. REQUIRES: not null.
  void SetModel(std::shared_ptr<const PerformanceModel> model);
  // A snapshot arrived that was true at `as_of`. Unknown servers and older versions of an instance are ignored.
  void Observe(std::string_view server, ServerSnapshot snapshot, TimeNs as_of);
  // The server has no snapshots: if it had, another program is at its address now, and what was heard of the old one is
  // forgotten: snapshot, drain, ejection and what it offered.
  void ObserveForeign(std::string_view server, TimeNs now);
  // The names of the models that a server without snapshots lists, by NameFingerprint (offered_names.h).
  void ObserveModels(std::string_view server, std::vector<std::uint64_t> fingerprints);
  // The result of a health probe, or of the long poll for snapshots.
  void ObserveProbe(std::string_view server, bool healthy, TimeNs now);

  // Chooses a server and counts the request as sent. `tried` are servers that it must not get. If any server is known
  // to offer the adapter, none gets the request that is known not to. Errors: kUnavailable, no server takes requests,
  // or none that offers the adapter; kNotFound, no server may serve this digest. The message says what is wrong with
  // each server.
  Result<Decision> Send(const RouteRequest& request, TimeNs now, std::span<const std::string> tried = {});
  // Takes one retry from the budget. False: it is used up.
  bool MayRetry(TimeNs now);
  // The first byte of an answer arrived. `well`: it is no error of the server, and does not say that nothing began.
  void Answered(Attempt attempt, TimeNs now, bool well = false);
  // The attempt has ended; must be called once for each.
  void End(Attempt attempt, AttemptEnd end, TimeNs now);

  // For /health, metrics and logs.
  struct ServerState {
    std::string name;
    bool ejected = false, draining = false, heard = false;
    double share = 1;            // slow start
    std::int64_t in_flight = 0;  // attempts that have not ended
    std::int64_t sent = 0, failures = 0, ejections = 0;
    TimeNs snapshot_at = -1;
    std::int64_t running = 0, waiting = 0;  // as of the snapshot
  };
  std::vector<ServerState> States(TimeNs now) const;
  bool panic(TimeNs now) const;  // more than most_ejected of the servers are ejected, so all are used
  // The snapshot of a server; null: none. Valid until the next call that changes the dispatcher.
  const ServerSnapshot* SnapshotOf(std::string_view server) const;

 private:
  struct Impl;
  explicit Dispatcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace loramux
