// What a request costs a fleet if it goes to this server: seconds that it takes itself, and seconds that others lose.
#pragma once

#include <cstdint>

#include "cluster/route_policy.h"
#include "cluster/server_load.h"

namespace loramux {

// A second before the first token counts as so many after it: nothing can be read meanwhile, and a queue of prompts is
// the first sign of a server with too much to do. In simulations 4 to 16 are alike, and with 1 several times as many
// requests miss an objective for the first token.
inline constexpr double kFirstTokenWeight = 8;

// Seconds, each 0 or more.
struct RequestCost {
  double start = 0;    // until its prompt is computed: the later of queue and adapter, or with the host's assistance
  double prefill = 0;  // its own step: prompt less what is cached, beside the decoding of the others
  double decode = 0;   // its answer, with the prompts that stall it meanwhile
  double others = 0;   // all other requests together: waiting for its prompt, and longer steps
  double evicted = 0;  // to bring back what is evicted for it, by the chance that it is needed
  double missed = 0;   // the chance that it, and more of the others, miss the objective for the time per token
  double Sum() const { return kFirstTokenWeight * (start + prefill) + decode + others + evicted + missed; }
};
RequestCost CostOf(const RouteContext& context, const ServerView& view);

// The parts, for the policies that need only one.
// Pages that a server must free for the request and all that wait, beyond its free ones. REQUIRES: view.snapshot.
std::int64_t MissingPages(const ServerView& view, const RouteRequest& request, const AdapterState& state);
// Pages that the request's adapter takes on this server's device; 0 if it is there.
std::int64_t AdapterPages(const ServerView& view, const RouteRequest& request, const AdapterState& state);
// Pages that the server can free without harm to running requests.
std::int64_t EvictablePages(const ServerSnapshot& snapshot);

}  // namespace loramux
