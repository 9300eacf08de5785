// Where in the dependency tree a request would begin.
#pragma once

#include "prefix/dependency_tree.h"
#include "schedule/request.h"

namespace loramux {

// The deepest node that the tree has for the tokens of the request and after which it may begin, in either tier. No
// more than Request::most_reused. Notes the result in Request::found, which usually still exists the next time, so that
// the search continues from it; and in Request::branches_at how far the tree has the tokens, where that may lead
// further than to the result.
inline NodeId FindTail(const DependencyTree& tree, Request& request) {
  const std::int64_t size = tree.index().page_tokens(), most = request.most_reused() / size;
  NodeId from = request.top;
  if (tree.nodes().Exists(request.found))
    from = request.found;
  else if (tree.nodes().Exists(request.tail))
    from = request.tail;
  const NodeId deepest = tree.index().Match(tree.nodes().KvNode(from), request.tokens, most);
  if (tree.state_pages() > 0) request.branches_at = static_cast<std::int32_t>(tree.nodes().KvDepth(deepest) * size);
  return request.found = tree.Beginning(deepest);
}

}  // namespace loramux
