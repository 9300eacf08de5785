// The second part of a policy: scorers give each server that the filters left a cost; the lower the better. Pure
// functions.
#pragma once

#include "cluster/route_policy.h"

namespace loramux {

using RouteScorer = double (*)(const RouteContext& context, const ServerView& view);

// The same for all.
double NoCost(const RouteContext& context, const ServerView& view);
// Requests at the server, with this one.
double RequestCount(const RouteContext& context, const ServerView& view);
// Waiting requests, with this one.
double QueueLength(const RouteContext& context, const ServerView& view);
// First fit, as Punica packs: of the servers with room the fullest. Without room: the least requests.
double Emptiness(const RouteContext& context, const ServerView& view);
// The adapter's rendezvous order.
double RendezvousOrder(const RouteContext& context, const ServerView& view);
// CaraServe's Algorithm 1: the additional time of a prefill of the queue, divided by the average answer, plus the
// additional time of a decoding step of all requests, plus kObjectivePenalty if that step exceeds the objective; times
// the number of requests. In seconds.
double RankAwareCost(const RouteContext& context, const ServerView& view);
inline constexpr double kObjectivePenalty = 1;  // far more than a step can take
// Seconds that the request costs (request_cost.h).
double SecondsOfAll(const RouteContext& context, const ServerView& view);

// What filters and scorers share.
// Whether the server takes the request at once: it has a seat in the batch and pages without preemption, and a step
// keeps the objective for the time per token (RouteContext::tpot_objective).
bool HasRoom(const RouteContext& context, const ServerView& view);
// llm-d's score: 1 if the adapter is active, 0.8 if there is room for one more adapter, 0.6 if requests wait for it,
// else 0. Active means that requests for it run.
double LoraAffinity(const RouteContext& context, const ServerView& view);

}  // namespace loramux
