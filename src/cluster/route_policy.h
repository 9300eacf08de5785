// What a router knows when a request arrives, and the interface of the policies that choose a server for it.
//
// A policy is composed of filters, a scorer and a picker (filters.h, scorers.h, pickers.h). All of them are pure: the
// same request, views, time and random number give the same choice. What changes over time is in the views, which the
// dispatcher makes (dispatcher.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "cluster/server_snapshot.h"
#include "costs/performance_model.h"

namespace loramux {

struct ServerLoad;

// A request that is to be sent to one of the servers.
struct RouteRequest {
  std::string adapter;                // its name; empty: the base model
  std::string digest;                 // the content that it must be answered with; empty: whatever a server has
  std::int32_t rank = 0;              // rank of the adapter; 0: unknown
  std::int64_t adapter_bytes = 0;     // 0: unknown
  std::int64_t prompt_tokens = 0;     // counted or estimated
  std::int64_t output_tokens = 0;     // expected
  std::vector<std::uint32_t> prefix;  // PrefixBlocks of the prompt
  TimeNs tpot_objective = 0;          // objective for the time per token; 0: the router's own
  // The conversation that it belongs to, as its client names it, or the server of its last answer (SessionToken). It
  // goes there again if that server takes requests. Empty: to any.
  std::string session_id, session_token;
};

// Requests that this router sent to a server and that the server's snapshot cannot know yet.
struct OwnDispatch {
  TimeNs at = 0;
  RouteRequest request;
  std::uint64_t attempt = 0;  // Dispatcher::Attempt
  bool answered = false;      // its first byte arrived: it waits no longer
};

// One server, as a router sees it now.
struct ServerView {
  std::string_view name;                     // "host:port"; also what rendezvous hashing uses
  const ServerSnapshot* snapshot = nullptr;  // null: nothing was heard yet
  TimeNs snapshot_at = 0;                    // when that state was true, on the router's clock
  // Sent since, oldest first. With corrections off it is empty.
  std::span<const OwnDispatch> sent;
  const ServerLoad* load = nullptr;  // snapshot and `sent` added up (server_load.h); never null in a RouteContext
  std::int64_t in_flight = 0;        // all requests of this router at the server that have not ended
  double share = 1;                  // share of a full server's load that it may get: below 1 in slow start
};

// What a choice is made from.
struct RouteContext {
  const RouteRequest& request;
  std::span<const ServerView> servers;  // those that may be chosen; not empty
  TimeNs now = 0;
  std::uint64_t random = 0;                 // uniform; the only source of chance
  const PerformanceModel* model = nullptr;  // times of one server; never null
  std::int64_t replicas = 1;        // servers that should hold the request's adapter, by its load (replica_sets.h)
  TimeNs tpot_objective = 0;        // objective for the time per token of Algorithm 1; 0: none
  std::int64_t average_answer = 0;  // avg_resp_len of Algorithm 1, in tokens; 0: what the request is expected to answer
};

// Chooses a server. Thread-safe: it has no state that changes.
class RoutePolicy {
 public:
  virtual ~RoutePolicy() = default;
  // Index in context.servers. REQUIRES: servers is not empty.
  virtual std::size_t Choose(const RouteContext& context) const = 0;
};

// A policy by name, and what it is.
struct RoutePolicyName {
  std::string_view name, summary;
};
// All policies, the default first (policies.cc).
std::span<const RoutePolicyName> RoutePolicies();
// Error: an unknown name; the message lists the valid ones.
Result<std::unique_ptr<RoutePolicy>> MakeRoutePolicy(std::string_view name);

}  // namespace loramux
