// The index of the dependency tree: finds cached pages by the tokens before and in them. It is a forest of tries; each
// begins at a top (a node without a page, TreeBranches) and its other nodes are single full pages. The path from the
// top to a node spells a token sequence. The index knows nothing of tiers, users and visits, with one exception:
// MatchInPage finds only nodes whose page can be read on the device.
//
// A node is one page, not an edge of several pages, for two reasons: nodes never split, so handles stay valid; and the
// unit of eviction is the unit of allocation. One hash table over all prefixes finds the children, so a match costs one
// look-up a page.
//
// A prompt may leave the cached path within a page. A child whose page begins with the same tokens then holds the keys
// and values of those first positions (MatchInPage). To find such a child, the index groups the children of a node by
// their first tokens (node_groups.h). The first child of a node is in no group: most nodes have one child only, and
// then need no group.
//
// Not thread-safe. No result depends on hash values or addresses. Allocates only when there are more nodes than ever
// before.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "prefix/node_groups.h"
#include "prefix/tree_nodes.h"

namespace loramux {

// See the top of this file.
class PrefixIndex {
 public:
  // Writes the places of `nodes`, and adds and removes them; does not own them. Prompts are untrusted, so `hash_seed`
  // must be a secret of the process: it prevents prompts that are crafted to collide in the table. No result depends on
  // it.
  PrefixIndex(TreeNodes* nodes, std::uint64_t hash_seed);

  // ---- Matching ----

  // Returns the deepest cached node on the path of `tokens`, at a depth of at most `max_pages` pages. `tokens` begins
  // at the top; the search starts at `from`, which lies on that path. Takes about 40 nanoseconds a page. REQUIRES:
  // `from` exists.
  NodeId Match(NodeId from, std::span<const TokenId> tokens, std::int64_t max_pages) const;

  // The result of MatchInPage: the first `tokens` positions of the node's page match.
  struct InPage {
    NodeId node;
    std::int64_t tokens = 0;  // 0: no match
  };
  // Finds the device child of `parent` whose page shares the longest prefix with `next`, the tokens that follow those
  // of `parent`. The shared prefix has at least least_in_page() tokens and is shorter than a page. Where many children
  // begin alike, the search examines the first child and the kMostLookedAt youngest children of the group. Takes less
  // than 1 microsecond, or a few microseconds if all that it reads is out of the CPU caches. REQUIRES: `parent` exists.
  InPage MatchInPage(NodeId parent, std::span<const TokenId> next) const;
  // The shortest prefix that MatchInPage reports: a quarter of a page. Copying a page would be cheaper than prefilling
  // even fewer tokens. But almost all prompts share their first one or two tokens, so a group would then contain nearly
  // all children.
  std::int64_t least_in_page() const { return (page_tokens() + 3) / 4; }
  // Group members that MatchInPage examines at most.
  static constexpr int kMostLookedAt = 16;

  // Tokens of a page.
  std::int64_t page_tokens() const { return nodes_->page_tokens(); }

  // ---- Changes ----

  // Adds the top of a trie of `branch`; `key` identifies the trie. The next function removes it. REQUIRES (RemoveTop):
  // it has no children.
  std::uint32_t AddTop(std::uint32_t branch, std::string_view key);
  void RemoveTop(std::uint32_t index);

  // Where the page of `tokens` below `parent` is, or belongs: its hash, and its node or kNone.
  struct Place {
    std::uint64_t hash = 0;
    std::uint32_t node = TreeNodes::kNone;
  };
  // REQUIRES: tokens.size() == page_tokens().
  Place Find(std::uint32_t parent, std::span<const TokenId> tokens) const;
  // Adds a node below `parent` and returns its index. REQUIRES: Find(parent, tokens) returned {hash, kNone}.
  std::uint32_t Insert(std::uint32_t parent, std::span<const TokenId> tokens, std::uint64_t hash);
  // Removes a node; its record can be read until the next Insert or AddTop. REQUIRES: depth > 0, no children.
  void Remove(std::uint32_t index);

  // Loads into the CPU caches what inserting below `parent` will read; `tokens` holds the pages to be inserted, in
  // order. A prefetch costs about a tenth of the cache miss that it saves. REQUIRES: `parent` exists.
  void PrefetchInsert(NodeId parent, std::span<const TokenId> tokens) const;
  // Loads into the CPU caches what Remove reads of the table.
  void PrefetchRemove(std::uint32_t index) const { __builtin_prefetch(&slots_[SlotOf((*nodes_)[index].hash)], 1); }

  // Aborts if an invariant is violated: a child follows its parent in depth and branch, the table finds every node by
  // its prefix and holds no others, and every node is the first child of its parent or in the right group.
  void CheckIntegrity() const;

 private:
  static constexpr std::uint32_t kNone = TreeNodes::kNone;

  // Slot of the table over all prefixes (linear probing). The tag avoids most look-ups of other nodes.
  struct Slot {
    std::uint32_t tag = 0;  // the lower half of the node's hash
    std::uint32_t node = kNone;
  };

  std::uint64_t HashOf(std::uint64_t parent_hash, const TokenId* tokens) const;
  // The child of `parent` with these tokens, or kNone.
  std::uint32_t FindChild(std::uint32_t parent, std::uint64_t hash, const TokenId* tokens) const;
  std::uint32_t GroupKey(std::uint32_t parent, const TokenId* tokens) const;
  // Compares the node's page with `next` and keeps the better of it and `best`.
  void LookInPage(std::uint32_t index, std::uint32_t parent, std::span<const TokenId> next, InPage& best) const;
  // Adds a node to `nodes_`, and room for it in the table.
  std::uint32_t AddNode();
  // Makes the node a child of `parent`, in the table and (unless it is the first child) in a group.
  void Link(std::uint32_t index, std::uint32_t parent);
  // Undoes Link.
  void Unlink(std::uint32_t index);
  // The table over all prefixes.
  void PutInTable(std::uint32_t tag, std::uint32_t index);
  void TakeFromTable(std::uint32_t tag, std::uint32_t index);
  void GrowTable();
  std::size_t SlotOf(std::uint64_t hash_or_tag) const {
    return static_cast<std::uint32_t>(hash_or_tag) & (slots_.size() - 1);
  }
  std::size_t NextSlot(std::size_t slot) const { return (slot + 1) & (slots_.size() - 1); }
  void CheckNode(std::uint32_t index) const;

  TreeNodes* nodes_;
  const std::uint64_t hash_seed_;
  std::vector<Slot> slots_;  // size: a power of two; at most half are used
  NodeGroups groups_;        // key: parent and first least_in_page() tokens; members: all children but the first
};

}  // namespace loramux
