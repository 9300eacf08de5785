// The first part of a policy: filters take servers off the list that it considers. Pure functions. A filter that would
// leave no server leaves all.
#pragma once

#include <vector>

#include "cluster/pickers.h"
#include "cluster/route_policy.h"

namespace loramux {

using RouteFilter = void (*)(const RouteContext& context, std::vector<Candidate>& candidates);

// Servers with a snapshot.
void KeepHeard(const RouteContext& context, std::vector<Candidate>& candidates);
// Two by chance, in proportion to their shares.
void KeepTwoByChance(const RouteContext& context, std::vector<Candidate>& candidates);
// Servers with at most kLoadBound times the mean number of requests: consistent hashing with bounded loads (Mirrokni,
// Thorup and Zadimoghaddam 2018).
void KeepWithinBound(const RouteContext& context, std::vector<Candidate>& candidates);
inline constexpr double kLoadBound = 1.25;
// Servers with the best LoraAffinity (scorers.h).
void KeepBestLora(const RouteContext& context, std::vector<Candidate>& candidates);
// Servers with the longest cached beginning of the prompt, if it is kLeastMatch of the blocks; all servers if their
// numbers of requests differ by more than kUnevenRequests and by more than the factor kUneven. As public routers do.
void KeepLongestPrefix(const RouteContext& context, std::vector<Candidate>& candidates);
inline constexpr double kLeastMatch = 0.3, kUneven = 1.5, kUnevenRequests = 64;
// Where the request's adapter is or should be: the first servers of its rendezvous order, RouteContext::replicas but at
// least kLeastHomes; up to kMostResidents others that have it, the emptier first; and kStrangers by chance, so that
// empty servers are found. A request to the base model uses the beginning of its prompt in place of the adapter.
void KeepLikelyHomes(const RouteContext& context, std::vector<Candidate>& candidates);
inline constexpr std::size_t kLeastHomes = 4, kMostResidents = 4, kStrangers = 2;

}  // namespace loramux
