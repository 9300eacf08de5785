#include "cluster/cached_prefix.h"

#include <algorithm>

#include "cluster/prefix_blocks.h"

namespace loramux {
namespace {

// Requests sent last that are compared: each takes a comparison of its blocks.
constexpr std::size_t kComparedRequests = 64;
constexpr double kTokensPerBlock = static_cast<double>(kPrefixBlockBytes) / kBytesPerToken;

}  // namespace

std::int64_t CachedBlocks(const ServerView& view, const RouteRequest& request) {
  if (request.prefix.empty()) return 0;
  // A block names all text before it, so a server that has one had those before it, and forgets them no earlier.
  std::size_t known = 0, unknown = request.prefix.size() + 1;
  if (view.snapshot == nullptr || !view.snapshot->HasPrefix(request.prefix.front())) unknown = 1;
  while (known + 1 < unknown) {
    const std::size_t middle = (known + unknown) / 2;
    (view.snapshot->HasPrefix(request.prefix[middle - 1]) ? known : unknown) = middle;
  }
  for (const OwnDispatch& sent : view.sent.last(std::min(view.sent.size(), kComparedRequests))) {
    const auto [own, other] = std::ranges::mismatch(request.prefix, sent.request.prefix);
    known = std::max(known, static_cast<std::size_t>(own - request.prefix.begin()));
  }
  return static_cast<std::int64_t>(known);
}

std::int64_t CachedTokens(const ServerView& view, const RouteRequest& request) {
  const auto tokens = static_cast<std::int64_t>(static_cast<double>(CachedBlocks(view, request)) * kTokensPerBlock);
  return std::clamp<std::int64_t>(tokens, 0, std::max<std::int64_t>(0, request.prompt_tokens - 1));
}

}  // namespace loramux
