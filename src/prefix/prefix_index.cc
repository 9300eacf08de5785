#include "prefix/prefix_index.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include <xxhash.h>

#include "base/check.h"

namespace loramux {

PrefixIndex::PrefixIndex(TreeNodes* nodes, std::uint64_t hash_seed)
    : nodes_(nodes), hash_seed_(hash_seed), slots_(1024) {}

// ---------------------------------------------------------------- Matching

std::uint64_t PrefixIndex::HashOf(std::uint64_t parent_hash, const TokenId* tokens) const {
  return XXH3_64bits_withSeed(tokens, static_cast<std::size_t>(page_tokens()) * sizeof(TokenId), parent_hash);
}

// Compares the tokens and the parent, so the result is exact even if hashes collide.
std::uint32_t PrefixIndex::FindChild(std::uint32_t parent, std::uint64_t hash, const TokenId* tokens) const {
  const auto bytes = static_cast<std::size_t>(page_tokens()) * sizeof(TokenId);
  for (std::size_t at = SlotOf(hash); slots_[at].node != kNone; at = NextSlot(at)) {
    if (slots_[at].tag != static_cast<std::uint32_t>(hash)) continue;
    const std::uint32_t index = slots_[at].node;
    const TreeNode& node = (*nodes_)[index];
    if (node.hash == hash && node.parent == parent &&
        std::memcmp(std::as_const(*nodes_).Tokens(index).data(), tokens, bytes) == 0) {
      return index;
    }
  }
  return kNone;
}

// The hashes do not depend on the nodes found. So several pages are hashed ahead and their slots prefetched together.
NodeId PrefixIndex::Match(NodeId from, std::span<const TokenId> tokens, std::int64_t max_pages) const {
  constexpr std::int64_t kAhead = 16;
  if (nodes_->At(from).first_child == kNone) return from;  // hashes nothing
  const std::int64_t size = page_tokens();
  const std::int64_t pages = std::min(max_pages, static_cast<std::int64_t>(tokens.size()) / size);
  std::array<std::uint64_t, kAhead> hashes;
  std::uint32_t at = from.index;
  std::uint64_t hash = nodes_->At(from).hash;
  for (std::int64_t page = nodes_->At(from).depth; page < pages;) {
    const std::int64_t block = std::min(kAhead, pages - page);
    for (std::int64_t i = 0; i < block; ++i) {
      hash = HashOf(hash, tokens.data() + (page + i) * size);
      hashes[static_cast<std::size_t>(i)] = hash;
      __builtin_prefetch(&slots_[SlotOf(hash)]);
    }
    for (std::int64_t i = 0; i < block; ++i) {
      const std::uint32_t first = slots_[SlotOf(hashes[static_cast<std::size_t>(i)])].node;
      if (first == kNone) break;
      nodes_->Prefetch(first);
      nodes_->PrefetchTokens(first);
    }
    for (std::int64_t i = 0; i < block; ++i, ++page) {
      const std::uint32_t child = FindChild(at, hashes[static_cast<std::size_t>(i)], tokens.data() + page * size);
      if (child == kNone) return nodes_->IdOf(at);
      at = child;
    }
  }
  return nodes_->IdOf(at);
}

std::uint32_t PrefixIndex::GroupKey(std::uint32_t parent, const TokenId* tokens) const {
  const auto size = static_cast<std::size_t>(least_in_page()) * sizeof(TokenId);
  return static_cast<std::uint32_t>(XXH3_64bits_withSeed(tokens, size, (*nodes_)[parent].hash));
}

// A group may hold nodes with the same key by coincidence, so parent and tokens are compared.
void PrefixIndex::LookInPage(std::uint32_t index, std::uint32_t parent, std::span<const TokenId> next,
                             InPage& best) const {
  const TreeNode& node = (*nodes_)[index];
  if (node.parent != parent || !node.on_device()) return;
  const std::span<const TokenId> page = std::as_const(*nodes_).Tokens(index).first(next.size());
  const auto alike =
      static_cast<std::int64_t>(std::mismatch(page.begin(), page.end(), next.begin()).first - page.begin());
  if (alike >= least_in_page() && alike > best.tokens) best = {nodes_->IdOf(index), alike};
}

PrefixIndex::InPage PrefixIndex::MatchInPage(NodeId parent, std::span<const TokenId> next) const {
  const std::uint32_t first_child = nodes_->At(parent).first_child;
  next = next.first(std::min(next.size(), static_cast<std::size_t>(page_tokens() - 1)));
  const auto most = static_cast<std::int64_t>(next.size());
  InPage best;
  if (most < least_in_page() || first_child == kNone) return best;
  LookInPage(first_child, parent.index, next, best);
  if ((*nodes_)[first_child].next_sibling == kNone) return best;
  std::uint32_t at = groups_.First(GroupKey(parent.index, next.data()));
  for (int i = 0; i < kMostLookedAt && at != NodeGroups::kNone && best.tokens < most; ++i, at = groups_.Next(at)) {
    LookInPage(at, parent.index, next, best);
  }
  return best;
}

PrefixIndex::Place PrefixIndex::Find(std::uint32_t parent, std::span<const TokenId> tokens) const {
  CHECK_EQ(static_cast<std::int64_t>(tokens.size()), page_tokens());
  const std::uint64_t hash = HashOf((*nodes_)[parent].hash, tokens.data());
  return {hash, FindChild(parent, hash, tokens.data())};
}

void PrefixIndex::PrefetchInsert(NodeId parent, std::span<const TokenId> tokens) const {
  std::uint64_t hash = nodes_->At(parent).hash;
  for (const TokenId* page = tokens.data(); tokens.data() + tokens.size() - page >= page_tokens();
       page += page_tokens()) {
    hash = HashOf(hash, page);
    __builtin_prefetch(&slots_[SlotOf(hash)], 1);
  }
}

// ---------------------------------------------------------------- Changes

std::uint32_t PrefixIndex::AddNode() {
  const std::uint32_t index = nodes_->Add();
  if (nodes_->slots() * 2 > slots_.size()) GrowTable();
  return index;
}

std::uint32_t PrefixIndex::AddTop(std::uint32_t branch, std::string_view key) {
  const std::uint32_t top = AddNode();
  (*nodes_)[top].branch = branch;
  (*nodes_)[top].hash = XXH3_64bits_withSeed(key.data(), key.size(), hash_seed_);
  return top;
}

void PrefixIndex::RemoveTop(std::uint32_t index) {
  CHECK_EQ((*nodes_)[index].depth, 0);
  CHECK_EQ((*nodes_)[index].first_child, kNone);
  nodes_->Remove(index);
}

std::uint32_t PrefixIndex::Insert(std::uint32_t parent, std::span<const TokenId> tokens, std::uint64_t hash) {
  const std::uint32_t index = AddNode();
  TreeNode& node = (*nodes_)[index];
  node.hash = hash;
  node.branch = (*nodes_)[parent].branch;
  node.depth = (*nodes_)[parent].depth + 1;
  std::copy(tokens.begin(), tokens.end(), nodes_->Tokens(index).begin());
  Link(index, parent);
  return index;
}

void PrefixIndex::Remove(std::uint32_t index) {
  CHECK_EQ((*nodes_)[index].first_child, kNone);
  Unlink(index);
  nodes_->Remove(index);
}

// The first child stays first, because it is the only child that is found without a group.
void PrefixIndex::Link(std::uint32_t index, std::uint32_t parent) {
  TreeNodes& nodes = *nodes_;
  TreeNode& node = nodes[index];
  node.parent = parent;
  if (const std::uint32_t first = nodes[parent].first_child; first == kNone) {
    nodes[parent].first_child = index;
  } else {
    node.previous_sibling = first;
    node.next_sibling = std::exchange(nodes[first].next_sibling, index);
    if (node.next_sibling != kNone) nodes[node.next_sibling].previous_sibling = index;
    node.grouped = true;
    groups_.Add(index, GroupKey(parent, nodes.Tokens(index).data()));
  }
  PutInTable(static_cast<std::uint32_t>(node.hash), index);
}

void PrefixIndex::Unlink(std::uint32_t index) {
  TreeNodes& nodes = *nodes_;
  TreeNode& node = nodes[index];
  if (node.next_sibling != kNone) nodes[node.next_sibling].previous_sibling = node.previous_sibling;
  (node.previous_sibling != kNone ? nodes[node.previous_sibling].next_sibling : nodes[node.parent].first_child) =
      node.next_sibling;
  if (node.grouped) groups_.Remove(index);
  TakeFromTable(static_cast<std::uint32_t>(node.hash), index);
}

void PrefixIndex::PutInTable(std::uint32_t tag, std::uint32_t index) {
  std::size_t at = SlotOf(tag);
  while (slots_[at].node != kNone) at = NextSlot(at);
  slots_[at] = {tag, index};
}

// Moves following entries into the hole where their home slot allows it, so a search may stop at the first empty slot.
void PrefixIndex::TakeFromTable(std::uint32_t tag, std::uint32_t index) {
  std::size_t hole = SlotOf(tag);
  while (slots_[hole].node != index) hole = NextSlot(hole);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = NextSlot(hole); slots_[at].node != kNone; at = NextSlot(at)) {
    const std::size_t from_home = (at - SlotOf(slots_[at].tag)) & mask, from_hole = (at - hole) & mask;
    if (from_home < from_hole) continue;
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole] = Slot{};
}

void PrefixIndex::GrowTable() {
  std::vector<Slot> old(std::bit_ceil(nodes_->slots() * 2 + 1));
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.node != kNone) PutInTable(slot.tag, slot.node);
  }
}

// ---------------------------------------------------------------- Integrity

void PrefixIndex::CheckIntegrity() const {
  std::size_t tops = 0, in_table = 0;
  std::int64_t grouped = 0;
  for (std::uint32_t index = 0; index < nodes_->slots(); ++index) {
    const TreeNode& node = (*nodes_)[index];
    if (!node.exists()) continue;
    grouped += node.grouped;
    if (node.depth == 0)
      ++tops;
    else
      CheckNode(index);
  }
  for (const Slot& slot : slots_) in_table += slot.node != kNone;
  CHECK_EQ(in_table + tops, nodes_->size());
  CHECK_EQ(grouped, groups_.size());
  groups_.CheckIntegrity();
}

// Checks a node by itself and against its parent.
void PrefixIndex::CheckNode(std::uint32_t index) const {
  const TreeNode& node = (*nodes_)[index];
  const TreeNode& parent = (*nodes_)[node.parent];
  const TokenId* const tokens = std::as_const(*nodes_).Tokens(index).data();
  CHECK(parent.exists());
  CHECK_EQ(parent.depth + 1, node.depth);
  CHECK_EQ(parent.branch, node.branch);
  CHECK_EQ(HashOf(parent.hash, tokens), node.hash);
  CHECK_EQ(FindChild(node.parent, node.hash, tokens), index);
  CHECK_EQ(node.previous_sibling == kNone, parent.first_child == index);
  CHECK(node.grouped || parent.first_child == index);
  if (node.grouped) CHECK_EQ(groups_.KeyOf(index), GroupKey(node.parent, tokens));
}

}  // namespace loramux
