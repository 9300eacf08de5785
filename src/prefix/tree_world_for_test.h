// A dependency tree with its pools, for the tests of the tree and of its parts.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "memory/page_pool.h"
#include "prefix/dependency_tree.h"

namespace loramux::tree_world {

// Positions of a page.
inline constexpr std::int64_t kPageTokens = 4;

// A tree over a pool of `pages` device pages, without a host tier.
struct World {
  std::unique_ptr<PagePool> pool;
  std::unique_ptr<DependencyTree> tree;

  explicit World(std::int64_t pages = 64, TimeNs half_life = kNsPerSecond, std::int64_t page_tokens = kPageTokens)
      : pool(std::move(PagePool::Create("device", pages * 64, 64)).value()),
        tree(std::make_unique<DependencyTree>(page_tokens, pool.get(), nullptr, half_life)) {}

  PageHandle NewPage() {
    PageHandle page;
    CHECK(pool->Allocate(PageCategory::kKv, std::span(&page, 1)));
    return page;
  }
  // Simulates a request that computes `tokens` and ends, so the path stays as history. Returns its tail.
  NodeId Remember(BranchId branch, const std::vector<TokenId>& tokens, TimeNs now) {
    NodeId tail = tree->index().Match(tree->branches().Top(branch), tokens, 1000);
    tree->Use(tail, now);
    const std::int64_t size = tree->index().page_tokens();
    for (std::int64_t at = tree->nodes().Depth(tail); (at + 1) * size <= static_cast<std::int64_t>(tokens.size());
         ++at) {
      const auto page_of =
          std::span(tokens).subspan(static_cast<std::size_t>(at * size), static_cast<std::size_t>(size));
      tail = tree->Insert(tail, page_of, NewPage(), now).node;
    }
    tree->EndUse(tail, now);
    return tail;
  }
  void CopyToHost(NodeId node) {
    std::vector<DependencyTree::MovingPages> copying;
    tree->BeginBackUp(std::span(&node, 1), copying);
    tree->EndMove(copying, /*failed=*/false);
  }
  std::int64_t Matched(BranchId branch, const std::vector<TokenId>& tokens) {
    return tree->nodes().Depth(tree->index().Match(tree->branches().Top(branch), tokens, 1000));
  }
};

// `count` tokens: first, first + 1, ...
inline std::vector<TokenId> Tokens(int count, TokenId first = 0) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = first + static_cast<TokenId>(i);
  return tokens;
}

}  // namespace loramux::tree_world
