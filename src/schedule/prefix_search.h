// Where in the dependency tree a request would begin.
#pragma once

#include "prefix/dependency_tree.h"
#include "schedule/request.h"

namespace loramux {

// The deepest node that the tree has for the tokens of the request and after which it may begin, in either tier. No
// more than Request::most_reused. Notes in Request::deepest how far the tree has the tokens: that node usually still
// exists the next time, so that the search continues from it. With states the request may begin at an earlier one
// (Request::found), and is a candidate for a snapshot where the tree ends (Request::branches_at).
inline NodeId FindTail(const DependencyTree& tree, Request& request) {
  const std::int64_t size = tree.index().page_tokens(), most = request.most_reused() / size;
  NodeId from = request.top;
  if (tree.nodes().Exists(request.deepest))
    from = request.deepest;
  else if (tree.nodes().Exists(request.tail))
    from = tree.nodes().KvNode(request.tail);
  const NodeId deepest = tree.index().Match(from, request.tokens, most);
  const bool known = deepest == request.deepest && request.found_at == tree.nodes().snapshot_changes();
  request.deepest = deepest;
  if (tree.state_pages() == 0) return request.found = deepest;
  if (known) return request.found;
  request.branches_at = static_cast<std::int32_t>(tree.nodes().KvDepth(deepest) * size);
  request.found_at = tree.nodes().snapshot_changes();
  return request.found = tree.Beginning(deepest);
}

}  // namespace loramux
