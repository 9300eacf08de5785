// How much of a prompt a server has probably cached.
#pragma once

#include <cstdint>

#include "cluster/route_policy.h"

namespace loramux {

// Blocks at the beginning of the prompt (prefix_blocks.h) that the server's snapshot names, or that this router has
// sent to the server since.
std::int64_t CachedBlocks(const ServerView& view, const RouteRequest& request);
// The same in tokens; at most all but one of the prompt's, because the last is always computed.
std::int64_t CachedTokens(const ServerView& view, const RouteRequest& request);

}  // namespace loramux
