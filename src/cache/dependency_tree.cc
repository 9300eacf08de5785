#include "cache/dependency_tree.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include <xxhash.h>

#include "base/check.h"

namespace loramux {
namespace {

constexpr std::size_t kMostNewIdleLeaves = std::size_t{1} << 16;  // listed until TakeNewIdleLeaves takes them

}  // namespace

DependencyTree::DependencyTree(std::int64_t page_tokens, PagePool* device, PagePool* host, TimeNs frequency_half_life,
                               std::uint64_t hash_seed)
    : page_tokens_(page_tokens),
      device_(device),
      host_(host),
      hash_seed_(hash_seed),
      forget_per_ns_(1.0 / static_cast<double>(frequency_half_life)) {
  CHECK_GT(page_tokens, 0);
  CHECK_GT(frequency_half_life, 0);
  slots_.assign(1024, Slot{});
}

std::span<const TokenId> DependencyTree::TokensOf(std::uint32_t index) const {
  const auto size = static_cast<std::size_t>(page_tokens_);
  return std::span(tokens_).subspan(index * size, size);
}

// ---------------------------------------------------------------- Branches

BranchId DependencyTree::Hold(std::string_view content_digest) {
  std::string key(content_digest);
  const auto found = branch_by_key_.find(key);
  if (found != branch_by_key_.end()) {
    ++branches_[found->second].holds;
    return BranchId{found->second};
  }
  if (free_branches_.empty()) {
    free_branches_.push_back(static_cast<std::uint32_t>(branches_.size()));
    branches_.emplace_back();
  }
  const std::uint32_t id = free_branches_.back();
  free_branches_.pop_back();
  branches_[id] = {.holds = 1, .top = NewTop(id, key), .tops = {}, .key = key};
  branch_by_key_.emplace(std::move(key), id);
  return BranchId{id};
}

void DependencyTree::Release(BranchId branch) {
  Branch& entry = branches_[branch.value];
  CHECK_GT(entry.holds, 0);
  if (--entry.holds > 0) return;
  Clear(branch);
  CHECK(entry.tops.empty());  // no request holds one
  FreeNode(entry.top);
  branch_by_key_.erase(entry.key);
  entry = {};
  free_branches_.push_back(branch.value);
}

void DependencyTree::Clear(BranchId branch) {
  RemoveBelow(branches_[branch.value].top);
  const std::vector<std::uint32_t> tops = branches_[branch.value].tops;  // those without holds are removed
  for (const std::uint32_t top : tops) RemoveBelow(top);
  CHECK_EQ(branches_[branch.value].pages, 0);
}

NodeId DependencyTree::Top(BranchId branch) const {
  CHECK_GT(branches_[branch.value].holds, 0);
  return IdOf(branches_[branch.value].top);
}

std::uint32_t DependencyTree::NewTop(std::uint32_t branch, std::string_view key) {
  const std::uint32_t top = NewNode();
  nodes_[top].branch = branch;
  nodes_[top].hash = XXH3_64bits_withSeed(key.data(), key.size(), hash_seed_);
  return top;
}

NodeId DependencyTree::HoldTop(BranchId branch, std::string_view domain) {
  if (domain.empty()) return Top(branch);
  CHECK_GT(branches_[branch.value].holds, 0);
  std::string key = std::to_string(branch.value) + "/";
  key += domain;
  const auto found = top_by_key_.find(key);
  if (found != top_by_key_.end()) {
    ++tops_.at(found->second).holds;
    return IdOf(found->second);
  }
  std::vector<std::uint32_t>& tops = branches_[branch.value].tops;
  const std::uint32_t top = NewTop(branch.value, branches_[branch.value].key + "\n" + key);
  tops_[top] = {.key = key, .holds = 1, .position = static_cast<std::uint32_t>(tops.size())};
  tops.push_back(top);
  top_by_key_.emplace(std::move(key), top);
  return IdOf(top);
}

void DependencyTree::ReleaseTop(NodeId top) {
  CHECK(Exists(top) && At(top).depth == 0);
  const auto found = tops_.find(top.index);
  if (found == tops_.end()) return;  // the shared domain's
  CHECK_GT(found->second.holds, 0);
  --found->second.holds;
  RemoveTopIfUnused(top.index);
}

void DependencyTree::RemoveTopIfUnused(std::uint32_t index) {
  const Node& node = nodes_[index];
  if (node.depth > 0 || node.first_child != kNone) return;
  const auto found = tops_.find(index);
  if (found == tops_.end() || found->second.holds > 0) return;
  std::vector<std::uint32_t>& tops = branches_[node.branch].tops;
  tops[found->second.position] = tops.back();
  tops_.at(tops.back()).position = found->second.position;
  tops.pop_back();
  top_by_key_.erase(found->second.key);
  tops_.erase(found);
  FreeNode(index);
}

// ---------------------------------------------------------------- Matching

std::uint64_t DependencyTree::HashOf(std::uint64_t parent_hash, const TokenId* tokens) const {
  return XXH3_64bits_withSeed(tokens, static_cast<std::size_t>(page_tokens_) * sizeof(TokenId), parent_hash);
}

// Compares the tokens and the parent, so the result is exact even if hashes collide.
std::uint32_t DependencyTree::Find(std::uint32_t parent, std::uint64_t hash, const TokenId* tokens) const {
  const auto size = static_cast<std::size_t>(page_tokens_);
  for (std::size_t at = SlotOf(hash); slots_[at].node != kNone; at = NextSlot(at)) {
    if (slots_[at].tag != static_cast<std::uint32_t>(hash)) continue;
    const Node& node = nodes_[slots_[at].node];
    if (node.hash == hash && node.parent == parent &&
        std::memcmp(tokens_.data() + slots_[at].node * size, tokens, size * sizeof(TokenId)) == 0) {
      return slots_[at].node;
    }
  }
  return kNone;
}

// The hashes do not depend on the nodes found. So several pages are hashed ahead and their slots prefetched together.
NodeId DependencyTree::Match(NodeId from, std::span<const TokenId> tokens, std::int64_t max_pages) const {
  constexpr std::int64_t kAhead = 16;
  const std::int64_t pages = std::min(max_pages, static_cast<std::int64_t>(tokens.size()) / page_tokens_);
  std::array<std::uint64_t, kAhead> hashes;
  std::uint32_t at = from.index;
  std::uint64_t hash = At(from).hash;
  for (std::int64_t page = At(from).depth; page < pages;) {
    const std::int64_t block = std::min(kAhead, pages - page);
    for (std::int64_t i = 0; i < block; ++i) {
      hash = HashOf(hash, tokens.data() + (page + i) * page_tokens_);
      hashes[static_cast<std::size_t>(i)] = hash;
      __builtin_prefetch(&slots_[SlotOf(hash)]);
    }
    for (std::int64_t i = 0; i < block; ++i) {
      const std::uint32_t first = slots_[SlotOf(hashes[static_cast<std::size_t>(i)])].node;
      if (first == kNone) break;
      __builtin_prefetch(&nodes_[first]);
      __builtin_prefetch(tokens_.data() + first * static_cast<std::size_t>(page_tokens_));
    }
    for (std::int64_t i = 0; i < block; ++i, ++page) {
      const std::uint32_t child = Find(at, hashes[static_cast<std::size_t>(i)], tokens.data() + page * page_tokens_);
      if (child == kNone) return IdOf(at);
      at = child;
    }
  }
  return IdOf(at);
}

std::uint32_t DependencyTree::GroupKey(std::uint32_t parent, const TokenId* tokens) const {
  const auto size = static_cast<std::size_t>(least_in_page()) * sizeof(TokenId);
  return static_cast<std::uint32_t>(XXH3_64bits_withSeed(tokens, size, nodes_[parent].hash));
}

// A group may hold nodes with the same key by coincidence, so parent and tokens are compared.
void DependencyTree::LookInPage(std::uint32_t index, std::uint32_t parent, std::span<const TokenId> next,
                                InPage& best) const {
  const Node& node = nodes_[index];
  if (node.parent != parent || !OnDevice(node)) return;
  const std::span<const TokenId> page = TokensOf(index).first(next.size());
  const auto alike =
      static_cast<std::int64_t>(std::mismatch(page.begin(), page.end(), next.begin()).first - page.begin());
  if (alike >= least_in_page() && alike > best.tokens) best = {IdOf(index), alike};
}

DependencyTree::InPage DependencyTree::MatchInPage(NodeId parent, std::span<const TokenId> next) const {
  const std::uint32_t first_child = At(parent).first_child;
  next = next.first(std::min(next.size(), static_cast<std::size_t>(page_tokens_ - 1)));
  const auto most = static_cast<std::int64_t>(next.size());
  InPage best;
  if (most < least_in_page() || first_child == kNone) return best;
  LookInPage(first_child, parent.index, next, best);
  if (nodes_[first_child].next_sibling == kNone) return best;
  std::uint32_t at = groups_.First(GroupKey(parent.index, next.data()));
  for (int i = 0; i < kMostLookedAt && at != NodeGroups::kNone && best.tokens < most; ++i, at = groups_.Next(at)) {
    LookInPage(at, parent.index, next, best);
  }
  return best;
}

void DependencyTree::CopyPath(NodeId node, std::span<PageHandle> out) const {
  CHECK_EQ(static_cast<std::int64_t>(out.size()), Depth(node));
  std::uint32_t at = node.index;
  for (std::size_t i = out.size(); i-- > 0; at = nodes_[at].parent) out[i] = nodes_[at].page;
}

// ---------------------------------------------------------------- Use

// Caches the last result, because the nodes of a path mostly have the same time of last use.
float DependencyTree::LeftAfter(TimeNs idle) {
  if (idle != left_after_) {
    left_after_ = idle;
    left_ = std::exp2(static_cast<float>(-static_cast<double>(std::max<TimeNs>(0, idle)) * forget_per_ns_));
  }
  return left_;
}

void DependencyTree::Visit(Node& node, TimeNs now) {
  if (IsObserved(node) && node.resting) {
    reuse_.SawVisit(EdgeFrequency(node), now - node.last_use);
    node.resting = false;
  }
  node.frequency = node.frequency * LeftAfter(now - node.last_use) + 1.0f;
  node.last_use = now;
  RaiseHostWorth(node);
}

void DependencyTree::UpdateIdleLeaf(std::uint32_t index) {
  Node& node = nodes_[index];
  const bool is = node.depth > 0 && node.page.generation != 0 && node.locks == 0 && node.device_children == 0 &&
                  (node.generation & 1u) != 0;
  if (is == (node.leaf_position != kNone)) return;
  if (is) {
    node.leaf_position = static_cast<std::uint32_t>(idle_leaves_.size());
    idle_leaves_.push_back(index);
    if (new_idle_leaves_.size() < kMostNewIdleLeaves) {
      new_idle_leaves_.push_back(IdOf(index));
    } else {
      new_idle_leaves_complete_ = false;
    }
    return;
  }
  const std::uint32_t last = idle_leaves_.back();
  idle_leaves_[node.leaf_position] = last;
  nodes_[last].leaf_position = node.leaf_position;
  idle_leaves_.pop_back();
  node.leaf_position = kNone;
}

void DependencyTree::UpdateHostRoot(std::uint32_t index) {
  Node& node = nodes_[index];
  const bool is = IsHostRoot(node);
  if (is == (node.root_position != kNone)) return;
  if (is) {
    node.root_position = static_cast<std::uint32_t>(host_roots_.size());
    host_roots_.push_back(index);
    return;
  }
  const std::uint32_t last = host_roots_.back();
  host_roots_[node.root_position] = last;
  nodes_[last].root_position = node.root_position;
  host_roots_.pop_back();
  node.root_position = kNone;
}

// Call after the node arrived on the device or left it. Takes time proportional to its children; most nodes have one.
void DependencyTree::UpdateHostRootsBelow(std::uint32_t index) {
  UpdateHostRoot(index);
  if (host_pages_ == 0) return;
  for (std::uint32_t at = nodes_[index].first_child; at != kNone; at = nodes_[at].next_sibling) UpdateHostRoot(at);
}

bool DependencyTree::TakeNewIdleLeaves(std::vector<NodeId>& out) {
  out.insert(out.end(), new_idle_leaves_.begin(), new_idle_leaves_.end());
  new_idle_leaves_.clear();
  return std::exchange(new_idle_leaves_complete_, true);
}

void DependencyTree::LockPath(std::uint32_t tail) {
  for (std::uint32_t at = tail; nodes_[at].depth > 0; at = nodes_[at].parent) {
    if (nodes_[at].locks++ == 0 && nodes_[at].page.generation != 0) --idle_pages_;
  }
  UpdateIdleLeaf(tail);
}

void DependencyTree::UnlockPath(std::uint32_t tail) {
  for (std::uint32_t at = tail; nodes_[at].depth > 0; at = nodes_[at].parent) {
    CHECK_GT(nodes_[at].locks, 0);
    if (--nodes_[at].locks == 0 && nodes_[at].page.generation != 0) ++idle_pages_;
  }
  UpdateIdleLeaf(tail);
}

void DependencyTree::Lock(NodeId tail, TimeNs now) {
  CHECK(Depth(tail) == 0 || HasDevicePage(tail));
  for (std::uint32_t at = tail.index; nodes_[at].depth > 0; at = nodes_[at].parent) {
    Node& node = nodes_[at];
    if (node.locks++ == 0) --idle_pages_;  // the whole path is on the device
    Visit(node, now);
  }
  if (host_ != nullptr) CountEdges(tail.index);
  UpdateIdleLeaf(tail.index);
}

bool DependencyTree::IsOnlyChild(std::uint32_t index) const {
  const Node& node = nodes_[index];
  return node.next_sibling == kNone && nodes_[node.parent].first_child == index;
}

// Sets edge_frequency on all edges of the path.
void DependencyTree::CountEdges(std::uint32_t tail) {
  for (std::uint32_t begin = tail; nodes_[begin].depth > 0;) {
    std::uint32_t top = begin;
    while (nodes_[top].depth > 1 && IsOnlyChild(top)) top = nodes_[top].parent;
    const std::uint32_t end = nodes_[top].parent;
    for (const float visits = nodes_[top].frequency; begin != end; begin = nodes_[begin].parent)
      nodes_[begin].edge_frequency = visits;
  }
}

// The use lasted until now without further visits, so the frequency decays from now on, not from the visit.
void DependencyTree::LetGo(Node& node, TimeNs now) {
  CHECK_GT(node.locks, 0);
  if (--node.locks == 0 && node.page.generation != 0) ++idle_pages_;
  const TimeNs used = now - node.last_use;
  node.last_use = now;
  RaiseHostWorth(node);  // with the undecayed visits: a long lock costs no worth
  node.frequency *= LeftAfter(used);
  node.edge_frequency *= LeftAfter(used);
  if (IsObserved(node)) node.resting = node.locks == 0;
}

// Each sample stands for its share of the observed pages during the whole time since the last call. After a quiet time
// it would stand for more than was observed, so the time is capped.
void DependencyTree::ObserveIdlePages(TimeNs now, double remembered_s) {
  constexpr int kSamples = 32;
  constexpr TimeNs kInterval = 20 * kNsPerMs, kLongest = kNsPerSecond, kLearnInterval = kNsPerSecond;
  const TimeNs since = now - observed_at_;
  if (since < kInterval || nodes_.empty()) return;
  observed_at_ = now;
  const auto observed =
      static_cast<std::uint64_t>((static_cast<std::int64_t>(nodes_.size()) + kObservedOf - 1) / kObservedOf);
  const double page_seconds =
      static_cast<double>(std::min(since, kLongest)) / kNsPerSecond * static_cast<double>(observed) / kSamples;
  for (int i = 0; i < kSamples; ++i) {
    const Node& node = nodes_[observed_prng_.NextBelow(observed) * kObservedOf];
    if ((node.generation & 1u) == 0 || !node.resting) continue;
    reuse_.SawIdle(EdgeFrequency(node), now - node.last_use, page_seconds);
  }
  if (now - learned_at_ < kLearnInterval) return;
  learned_at_ = now;
  reuse_.Learn(now, remembered_s);
}

void DependencyTree::Unlock(NodeId tail, TimeNs now) {
  CHECK(Exists(tail));
  for (std::uint32_t at = tail.index; nodes_[at].depth > 0; at = nodes_[at].parent) LetGo(nodes_[at], now);
  UpdateIdleLeaf(tail.index);
}

void DependencyTree::UnlockLast(NodeId id, TimeNs now) {
  CHECK_GT(At(id).depth, 0);
  LetGo(At(id), now);
  UpdateIdleLeaf(id.index);
}

void DependencyTree::Want(NodeId tail) { ++At(tail).wants; }

void DependencyTree::Unwant(NodeId tail) {
  if (!Exists(tail)) return;
  CHECK_GT(nodes_[tail.index].wants, 0);
  --nodes_[tail.index].wants;
}

void DependencyTree::PrefetchInsert(NodeId parent, std::span<const TokenId> tokens) const {
  std::uint64_t hash = At(parent).hash;
  for (const TokenId* page = tokens.data(); tokens.data() + tokens.size() - page >= page_tokens_;
       page += page_tokens_) {
    hash = HashOf(hash, page);
    __builtin_prefetch(&slots_[SlotOf(hash)], 1);
  }
}

DependencyTree::Inserted DependencyTree::Insert(NodeId parent, std::span<const TokenId> tokens, PageHandle page,
                                                TimeNs now) {
  CHECK_EQ(static_cast<std::int64_t>(tokens.size()), page_tokens_);
  CHECK(At(parent).depth == 0 || At(parent).locks > 0);
  const std::uint64_t hash = HashOf(nodes_[parent.index].hash, tokens.data());
  const std::uint32_t found = Find(parent.index, hash, tokens.data());
  if (found != kNone) {
    if (nodes_[found].move == Move::kFetch) return {IdOf(found), Inserted::kNotNow};
    const bool existed = OnDevice(nodes_[found]);
    if (!existed) {  // computed again; the copy in the host tier stays
      ArriveOnDevice(found, page);
      OfferToDrop(found);
    }
    Node& node = nodes_[found];
    if (node.locks++ == 0) --idle_pages_;
    Visit(node, now);
    node.edge_frequency = std::max(node.frequency, IsOnlyChild(found) ? nodes_[node.parent].edge_frequency : 0.0f);
    UpdateIdleLeaf(found);
    return {IdOf(found), existed ? Inserted::kExisted : Inserted::kTaken};
  }
  const std::uint32_t index = NewNode();
  Node& node = nodes_[index];
  node.hash = hash;
  node.branch = nodes_[parent.index].branch;
  node.depth = nodes_[parent.index].depth + 1;
  node.last_use = now;
  node.frequency = 1.0f;
  RaiseHostWorth(node);
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + static_cast<std::ptrdiff_t>(index) * page_tokens_);
  Link(index, parent.index);
  node.edge_frequency = std::max(1.0f, IsOnlyChild(index) ? nodes_[parent.index].edge_frequency : 1.0f);
  node.locks = 1;
  ArriveOnDevice(index, page);
  return {IdOf(index), Inserted::kTaken};
}

// Prefetches in two stages, because the slot address depends on the node.
void DependencyTree::PrefetchEvict(std::span<const NodeId> nodes, std::size_t i) const {
  constexpr std::size_t kNode = 8, kSlot = 4;
  if (i + kNode < nodes.size()) {
    const Node& node = nodes_[nodes[i + kNode].index];
    __builtin_prefetch(&node, 1);
    __builtin_prefetch(&node.host_page, 1);
  }
  if (i + kSlot < nodes.size()) {
    const Node& node = nodes_[nodes[i + kSlot].index];
    __builtin_prefetch(&slots_[SlotOf(node.hash)], 1);
    __builtin_prefetch(&nodes_[node.parent], 1);
  }
}

void DependencyTree::Evict(NodeId id) {
  const Node& node = At(id);
  CHECK_GT(node.depth, 0);
  CHECK_EQ(node.locks, 0);
  CHECK_EQ(node.device_children, 0);
  CHECK(OnDevice(node));
  if (HasHostCopy(node)) {
    device_->Free(PageCategory::kKv, std::span(&node.page, 1));
    LeaveDevice(id.index);
    OfferToDrop(id.index);
    return;
  }
  RemoveBelow(id.index);
  Remove(id.index);
}

// ---------------------------------------------------------------- Tiers

void DependencyTree::ArriveOnDevice(std::uint32_t index, PageHandle page) {
  Node& node = nodes_[index];
  CHECK(device_->IsCurrent(page));
  node.page = page;
  ++pages_;
  ++branches_[node.branch].pages;
  if (node.locks == 0) ++idle_pages_;
  ++nodes_[node.parent].device_children;
  UpdateIdleLeaf(node.parent);
  UpdateIdleLeaf(index);
  UpdateHostRootsBelow(index);
}

// The caller has freed the page or has passed it on.
void DependencyTree::LeaveDevice(std::uint32_t index) {
  Node& node = nodes_[index];
  node.page = {};
  --pages_;
  --branches_[node.branch].pages;
  if (node.locks == 0) --idle_pages_;
  --nodes_[node.parent].device_children;
  UpdateIdleLeaf(node.parent);
  UpdateIdleLeaf(index);
  UpdateHostRootsBelow(index);
}

void DependencyTree::FreeHostPage(Node& node) {
  host_->Free(PageCategory::kKv, std::span(&node.host_page, 1));
  node.host_page = {};
  --host_pages_;
}

// Removes a leaf from both tiers. Pages in transfer are left to the transfer, which frees them.
void DependencyTree::Remove(std::uint32_t index) {
  Node& node = nodes_[index];
  CHECK_EQ(node.first_child, kNone);
  const bool moving = node.move != Move::kNone;
  if (node.page.generation != 0) {
    if (!moving) device_->Free(PageCategory::kKv, std::span(&node.page, 1));
    LeaveDevice(index);
  }
  if (moving) {
    SetMove(node, Move::kNone);
    --host_pages_;
    ++orphans_;
  } else if (node.host_page.generation != 0) {
    FreeHostPage(node);
  }
  const std::uint32_t parent = node.parent;
  Unlink(index);
  FreeNode(index);
  RemoveTopIfUnused(parent);
}

void DependencyTree::RemoveBelow(std::uint32_t top) {
  for (std::uint32_t at = top; nodes_[top].first_child != kNone;) {
    if (nodes_[at].first_child != kNone) {
      at = nodes_[at].first_child;
      continue;
    }
    const std::uint32_t parent = nodes_[at].parent;
    Remove(at);
    at = parent;
  }
}

void DependencyTree::SetMove(Node& node, Move move) {
  const int change = (move != Move::kNone) - (node.move != Move::kNone);
  node.move = move;
  if (change == 0) return;
  moving_ += change;
  Branch& branch = branches_[node.branch];
  branch.moving += change;
  if (change > 0 && branch.moving == 1) {
    branch.moving_position = static_cast<std::uint32_t>(moving_branches_.size());
    moving_branches_.push_back(node.branch);
  } else if (branch.moving == 0) {
    branches_[moving_branches_.back()].moving_position = branch.moving_position;
    moving_branches_[branch.moving_position] = moving_branches_.back();
    moving_branches_.pop_back();
  }
}

void DependencyTree::BeginBackUp(std::span<const NodeId> nodes, std::vector<MovingPages>& pages) {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    Node& node = At(nodes[i]);
    CHECK(OnDevice(node) && node.host_page.generation == 0 && node.move == Move::kNone);
    if (i > 0) CHECK_EQ(node.parent, nodes[i - 1].index);
    CHECK(host_->Allocate(PageCategory::kKv, std::span(&node.host_page, 1)));
    ++host_pages_;
    SetMove(node, Move::kBackUp);
    pages.push_back({nodes[i], node.page, node.host_page});
  }
  LockPath(nodes.back().index);
}

void DependencyTree::BeginFetch(NodeId tail, std::vector<MovingPages>& pages) {
  const std::size_t first = pages.size();
  for (std::uint32_t at = tail.index; !OnDevice(nodes_[at]); at = nodes_[at].parent) {
    CHECK(nodes_[at].move == Move::kNone);
    pages.push_back({IdOf(at), {}, nodes_[at].host_page});
  }
  CHECK_GT(pages.size(), first);
  std::reverse(pages.begin() + static_cast<std::ptrdiff_t>(first), pages.end());
  for (MovingPages& page : std::span(pages).subspan(first)) {
    CHECK(device_->Allocate(PageCategory::kKv, std::span(&page.device, 1)));
    SetMove(nodes_[page.node.index], Move::kFetch);
    ArriveOnDevice(page.node.index, page.device);
  }
  LockPath(tail.index);
}

// Returns false, and frees both pages, if the node has been removed.
bool DependencyTree::EndMove(const MovingPages& pages) {
  if (Exists(pages.node)) {
    const bool fetched = nodes_[pages.node.index].move == Move::kFetch;
    SetMove(nodes_[pages.node.index], Move::kNone);
    if (fetched) UpdateHostRootsBelow(pages.node.index);
    return true;
  }
  device_->Free(PageCategory::kKv, std::span(&pages.device, 1));
  host_->Free(PageCategory::kKv, std::span(&pages.host, 1));
  --orphans_;
  return false;
}

// A branch is removed as a whole, so either all nodes of `pages` exist or none.
void DependencyTree::EndBackUp(std::span<const MovingPages> pages, bool failed) {
  if (Exists(pages.back().node)) UnlockPath(pages.back().node.index);
  for (const MovingPages& page : pages) {
    if (!EndMove(page)) continue;
    if (failed) {
      FreeHostPage(nodes_[page.node.index]);
    } else {
      OfferToDrop(page.node.index);
    }
  }
}

void DependencyTree::EndFetch(std::span<const MovingPages> pages, bool failed) {
  if (Exists(pages.back().node)) UnlockPath(pages.back().node.index);
  for (std::size_t i = pages.size(); i-- > 0;) {
    if (!EndMove(pages[i])) continue;
    if (failed) {
      device_->Free(PageCategory::kKv, std::span(&pages[i].device, 1));
      LeaveDevice(pages[i].node.index);
    }
    OfferToDrop(pages[i].node.index);
  }
}

// ---------------------------------------------------------------- The host tier's order

void DependencyTree::OfferToDrop(std::uint32_t index) {
  PushDroppable(index);
  if (droppable_.size() <= 1024 + 4 * static_cast<std::size_t>(host_pages_)) return;
  droppable_.clear();  // most entries are outdated
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if ((nodes_[i].generation & 1u) != 0 && nodes_[i].host_page.generation != 0) PushDroppable(i);
  }
}

void DependencyTree::PushDroppable(std::uint32_t index) {
  droppable_.push_back({nodes_[index].host_worth, nodes_[index].depth, IdOf(index)});
  std::push_heap(droppable_.begin(), droppable_.end());
}

// Brings a page that may be dropped to the top of the heap: the copy of a device page, or a leaf of the host part.
bool DependencyTree::NextToDrop() {
  while (!droppable_.empty()) {
    const Droppable first = droppable_.front();
    const bool exists = Exists(first.node);
    const Node& node = nodes_[first.node.index];
    const bool droppable = exists && node.host_page.generation != 0 && node.move == Move::kNone &&
                           (OnDevice(node) || node.first_child == kNone);
    if (droppable && node.host_worth == first.worth) return true;
    std::pop_heap(droppable_.begin(), droppable_.end());
    droppable_.pop_back();
    if (droppable) PushDroppable(first.node.index);  // used since it was pushed
  }
  return false;
}

TimeNs DependencyTree::LeastHostWorth() {
  return NextToDrop() ? droppable_.front().worth : std::numeric_limits<TimeNs>::max();
}

TimeNs DependencyTree::HostWorth(TimeNs last_use, double frequency) const {
  constexpr double kFewestVisits = 1.0 / 64;  // lower bound of the logarithm's argument
  if (host_bonus_ == 0) return last_use;
  return last_use +
         static_cast<TimeNs>(static_cast<double>(host_bonus_) * std::log2(std::max(kFewestVisits, frequency)));
}

void DependencyTree::set_host_bonus(TimeNs per_doubling) {
  CHECK_EQ(host_pages_, 0);  // no entry of the heap may have another order
  host_bonus_ = per_doubling;
}

void DependencyTree::DropHostPages(std::int64_t count) {
  for (; count > 0; --count) {
    CHECK(NextToDrop());
    const std::uint32_t index = droppable_.front().node.index;
    std::pop_heap(droppable_.begin(), droppable_.end());
    droppable_.pop_back();
    if (OnDevice(nodes_[index])) {
      FreeHostPage(nodes_[index]);
      continue;
    }
    const std::uint32_t parent = nodes_[index].parent;
    Remove(index);  // perhaps the parent too, if that is a top
    if (nodes_[parent].host_page.generation != 0) OfferToDrop(parent);
  }
}

// ---------------------------------------------------------------- Nodes

std::uint32_t DependencyTree::NewNode() {
  if (free_nodes_.empty()) {
    free_nodes_.push_back(static_cast<std::uint32_t>(nodes_.size()));
    nodes_.emplace_back();
    tokens_.resize(tokens_.size() + static_cast<std::size_t>(page_tokens_));
    if (nodes_.size() * 2 > slots_.size()) GrowTable();
  }
  const std::uint32_t index = free_nodes_.back();
  free_nodes_.pop_back();
  constexpr std::size_t kAhead = 4;  // the pages of a prompt are inserted one after another
  if (free_nodes_.size() >= kAhead) {
    const std::uint32_t later = free_nodes_[free_nodes_.size() - kAhead];
    __builtin_prefetch(&nodes_[later], 1);
    __builtin_prefetch(&nodes_[later].host_page, 1);
    __builtin_prefetch(tokens_.data() + later * static_cast<std::size_t>(page_tokens_), 1);
  }
  const std::uint32_t generation = nodes_[index].generation + 1;
  nodes_[index] = Node{};
  nodes_[index].generation = generation;
  return index;
}

void DependencyTree::FreeNode(std::uint32_t index) {
  CHECK_EQ(nodes_[index].generation & 1u, 1u);
  ++nodes_[index].generation;
  UpdateIdleLeaf(index);
  UpdateHostRoot(index);
  free_nodes_.push_back(index);
}

// The first child stays first, because it is the only child that is found without a group.
void DependencyTree::Link(std::uint32_t index, std::uint32_t parent) {
  Node& node = nodes_[index];
  node.parent = parent;
  if (const std::uint32_t first = nodes_[parent].first_child; first == kNone) {
    nodes_[parent].first_child = index;
  } else {
    node.previous_sibling = first;
    node.next_sibling = std::exchange(nodes_[first].next_sibling, index);
    if (node.next_sibling != kNone) nodes_[node.next_sibling].previous_sibling = index;
    node.grouped = true;
    groups_.Add(index, GroupKey(parent, TokensOf(index).data()));
  }
  PutInTable(static_cast<std::uint32_t>(node.hash), index);
}

void DependencyTree::Unlink(std::uint32_t index) {
  Node& node = nodes_[index];
  if (node.next_sibling != kNone) nodes_[node.next_sibling].previous_sibling = node.previous_sibling;
  (node.previous_sibling != kNone ? nodes_[node.previous_sibling].next_sibling : nodes_[node.parent].first_child) =
      node.next_sibling;
  if (node.grouped) groups_.Remove(index);
  TakeFromTable(static_cast<std::uint32_t>(node.hash), index);
}

void DependencyTree::PutInTable(std::uint32_t tag, std::uint32_t index) {
  std::size_t at = SlotOf(tag);
  while (slots_[at].node != kNone) at = NextSlot(at);
  slots_[at] = {tag, index};
}

// Moves following entries into the hole where their home slot allows it, so a search may stop at the first empty slot.
void DependencyTree::TakeFromTable(std::uint32_t tag, std::uint32_t index) {
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

void DependencyTree::GrowTable() {
  std::vector<Slot> old(std::bit_ceil(nodes_.size() * 2 + 1));
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.node != kNone) PutInTable(slot.tag, slot.node);
  }
}

}  // namespace loramux
