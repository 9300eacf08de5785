// The branches of the dependency tree and their tops, where matches begin (dependency_tree.h).
//
// A branch is keyed by a digest of the content of an adapter, never by a name. After a reload under the same name, a
// request therefore finds none of the keys and values of the old weights.
//
// Domains. A branch has one trie for each sharing domain that has pages or requests: a match finds only pages of its
// own domain. The branch's own top is that of the shared domain "". A top of another domain exists as long as there are
// holds or pages below it. Domains change nothing else: pages are counted and evicted by branch, whatever their domain.
//
// Not thread-safe. Knows neither pages nor visits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "prefix/prefix_index.h"
#include "prefix/tree_nodes.h"

namespace loramux {

// See the top of this file.
class TreeBranches {
 public:
  // Owns neither argument. `index` is the index of `nodes`.
  TreeBranches(TreeNodes* nodes, PrefixIndex* index) : nodes_(nodes), index_(index) {}

  // Returns the branch of this content and creates it if there is none. Each call takes one hold.
  BranchId Hold(std::string_view content_digest);
  // Gives back one hold. Returns true if it was the last one: then the caller removes the pages and calls Remove.
  bool Release(BranchId branch);
  // Removes the branch. REQUIRES: no holds, no pages, and no tops of other domains.
  void Remove(BranchId branch);

  // The node without a page where matches of the shared domain begin in this branch. REQUIRES: a hold.
  NodeId Top(BranchId branch) const;
  // The same for another sharing domain (empty: the shared one). Each call takes one hold, so that the top exists until
  // ReleaseTop. Without holds it exists as long as there are pages below it.
  NodeId HoldTop(BranchId branch, std::string_view domain);
  // Gives back one hold of HoldTop.
  void ReleaseTop(NodeId top);
  // Removes the node if it is the top of a domain other than the shared one, with neither holds nor pages.
  void RemoveTopIfUnused(std::uint32_t index);
  // Appends the nodes of all tops of the branch to `out`, that of the shared domain first.
  void AppendTops(BranchId branch, std::vector<std::uint32_t>& out) const;

  // Tops of all branches, those of the shared domain included.
  std::size_t tops() const { return branch_by_key_.size() + tops_.size(); }
  bool IsShared(BranchId branch) const { return branches_[branch.value].holds > 1; }  // more than one hold
  bool IsHeld(BranchId branch) const { return branch.value < slots() && branches_[branch.value].holds > 0; }
  std::size_t slots() const { return branches_.size(); }  // branch ids are below this

  // Aborts if a node is of no branch, or a top is not that of a branch or of a domain with holds or pages.
  void CheckIntegrity() const;

 private:
  static constexpr std::uint32_t kNone = TreeNodes::kNone;

  // A branch, or a free slot.
  struct Branch {
    std::int64_t holds = 0;           // 0: a free slot
    std::uint32_t top = kNone;        // node of the shared domain
    std::vector<std::uint32_t> tops;  // nodes of the other domains
    std::string key;
  };
  // The top of a domain other than the shared one.
  struct DomainTop {
    std::string key;             // in top_by_key_
    std::int64_t holds = 0;      // by HoldTop
    std::uint32_t position = 0;  // in Branch::tops
  };
  void CheckTop(std::uint32_t index) const;

  TreeNodes* nodes_;
  PrefixIndex* index_;
  std::vector<Branch> branches_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<std::string, std::uint32_t> branch_by_key_;  // looked up, never iterated, as are the next two
  std::unordered_map<std::string, std::uint32_t> top_by_key_;     // nodes
  std::unordered_map<std::uint32_t, DomainTop> tops_;             // by node
};

}  // namespace loramux
