// Where in the dependency tree a request would begin.
#pragma once

#include "prefix/dependency_tree.h"
#include "schedule/request.h"

namespace loramux {

// The deepest node that the tree has for the tokens of the request, in either tier. No more than Request::most_reused.
// Notes the result in Request::found, which usually still exists the next time, so that the search continues from it.
inline NodeId FindTail(const DependencyTree& tree, Request& request) {
  const std::int64_t most = request.most_reused() / tree.index().page_tokens();
  NodeId from = request.top;
  if (tree.nodes().Exists(request.found))
    from = request.found;
  else if (tree.nodes().Exists(request.tail))
    from = request.tail;
  return request.found = tree.index().Match(from, request.tokens, most);
}

}  // namespace loramux
