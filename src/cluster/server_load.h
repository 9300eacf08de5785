// What a server has to do, as far as a router knows: its snapshot, plus what the router sent since, less what it saw
// end since. A choice among many servers only reads sums.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "cluster/route_policy.h"
#include "cluster/server_snapshot.h"
#include "costs/performance_model.h"

namespace loramux {

// A plain value. Counts are of requests.
struct ServerLoad {
  // Requests for one adapter since the snapshot.
  struct Change {
    std::string adapter;
    std::int64_t sent = 0;    // all that this router sent
    std::int64_t queued = 0;  // requests among them without a first byte
    std::int64_t ended = 0;   // requests that the snapshot counts, and that have ended
    std::int32_t rank = 0;    // as the requests have it
    std::int64_t bytes = 0;   // as the requests have it
    TimeNs first_sent = 0;    // when the first of `sent` was sent
  };

  std::int64_t running = 0;                // less those that ended; with those that were sent and answered
  std::int64_t waiting = 0;                // with those that were sent and not answered
  StepLoad queue;                          // a step that computes all prompts of the waiting requests
  StepLoad exists;                         // a step in which all requests decode
  std::int64_t running_prompt_tokens = 0;  // prompt tokens of running requests that are not computed yet
  std::int64_t arriving_bytes = 0;         // bytes of adapters on their way to the device, or soon to be
  std::int64_t claimed_pages = 0;          // pages of keys and values that the waiting requests will take
  std::vector<Change> changes;             // in the order of their first change

  std::int64_t requests() const { return running + waiting; }
  const Change* Find(std::string_view adapter) const;

  // The load of a snapshot alone.
  static ServerLoad Of(const ServerSnapshot& snapshot);
  // Adds a request that was sent since the snapshot. Null: there is no snapshot. `times`: how many such requests all
  // routers together are assumed to have sent.
  void AddSent(const OwnDispatch& dispatch, const ServerSnapshot* snapshot, std::int64_t times = 1);
  // Takes away what AddSent added with the same arguments, in any order. `queue.max_rank`, `exists.max_rank` and the
  // times of the first requests stay: to know the second largest takes a search.
  void RemoveSent(const OwnDispatch& dispatch, const ServerSnapshot* snapshot, std::int64_t times = 1);
  // Takes away a request that the snapshot counts as running.
  void AddEnded(const RouteRequest& request, const ServerSnapshot* snapshot);

 private:
  Change& ChangeOf(const RouteRequest& request);
  static bool Fetches(const RouteRequest& request, const SnapshotAdapter* listed, const Change& change);
};

// What a server has of an adapter, and is asked for it.
struct AdapterState {
  const SnapshotAdapter* listed = nullptr;  // null: the snapshot does not list it
  std::int64_t queued = 0;                  // requests that wait for it, with those sent since
  std::int64_t requests = 0;                // all
  TimeNs sent_at = -1;                      // when this router sent the first request since the snapshot; -1: none
};
// REQUIRES: view.load is not null.
AdapterState StateOf(const ServerView& view, std::string_view adapter);

// view.load->queue and view.load->exists with one more request, whose adapter is in this state.
StepLoad QueueWith(const ServerView& view, const RouteRequest& request, const AdapterState& state);
StepLoad ExistsWith(const ServerView& view, const RouteRequest& request, const AdapterState& state);

// Pages for the keys and values of a request from its first to its last token; 0 if the server has no pages.
std::int64_t PagesOf(const RouteRequest& request, const ServerSnapshot* snapshot);

}  // namespace loramux
