// The last part of a policy: pickers choose one of the servers that have a cost. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cluster/route_policy.h"

namespace loramux {

// A server that a policy still considers.
struct Candidate {
  std::size_t index = 0;  // in RouteContext::servers
  double cost = 0;        // the lower the better
};
using RoutePicker = std::size_t (*)(const RouteContext& context, std::span<const Candidate> candidates);

// By chance, in proportion to the shares that the servers may get. REQUIRES here and below: candidates is not empty.
std::size_t PickByShare(const RouteContext& context, std::span<const Candidate> candidates);
// The least cost; equal ones by chance. A server in slow start has its cost divided by its share.
std::size_t PickLeast(const RouteContext& context, std::span<const Candidate> candidates);

// Position in `candidates` by chance, in proportion to the shares.
std::size_t PositionByShare(const RouteContext& context, std::span<const Candidate> candidates, std::uint64_t random);

}  // namespace loramux
