#include "schedule/request_pages.h"

#include <algorithm>

#include "base/check.h"
#include "schedule/prefix_search.h"

namespace loramux {

RequestPages::RequestPages(const SystemSpec& options, PagePool& device, ResidencyManager& residency,
                           DependencyTree& tree, KvTiers& tiers)
    : page_tokens_(options.page_tokens),
      state_pages_(options.state_pages),
      device_(device),
      residency_(residency),
      tree_(tree),
      tiers_(tiers),
      branches_(tree, residency),
      interval_(options.state_snapshot_tokens, page_tokens_, state_pages_ * page_tokens_) {
  CHECK_EQ(tree_.index().page_tokens(), page_tokens_);
}

// ---------------------------------------------------------------- The life of a request

void RequestPages::Enter(Request* request) {
  request->branch = branches_.Know(request->adapter);
  if (request->base_tokens > 0) request->branch = branches_.base();
  request->top = tree_.HoldTop(request->branch, request->prefix_domain);
  request->tail = FindTail(tree_, *request);
  tree_.Want(request->tail);
}

bool RequestPages::Admit(const PlannedAdmission& admission, TimeNs now) {
  const Request& request = *admission.request;
  bool early = false;
  if (request.adapter != kBaseModel) {
    early = residency_.Get(request.adapter).arriving();
    residency_.Use(request.adapter, now);
  }
  if (!tree_.tiers().OnDevice(admission.tail)) {
    tiers_.Use(admission.tail);
    early = true;
  }
  BeginFrom(admission, now);
  return early;
}

void RequestPages::BeginFrom(const PlannedAdmission& admission, TimeNs now) {
  Request* request = admission.request;
  const NodeId tail = admission.tail;
  const bool copies = admission.copies();
  tree_.Unwant(request->tail);
  tree_.Use(copies ? admission.in_page.node : tail, now);
  if (copies) request->copied_from = admission.in_page.node;
  prefix_stats_.copied_pages += admission.in_page.tokens > 0;
  request->fetches = 0;
  request->fetched_ahead = false;
  request->tail = tail;
  const std::int64_t depth = tree_.nodes().Depth(tail);
  request->tree_pages = static_cast<std::int32_t>(depth);
  request->pages.resize(static_cast<std::size_t>(depth));
  tree_.tiers().CopyPath(tail, request->pages);
  request->page_table.assign(static_cast<std::size_t>(state_pages_), 0);  // Allocate has the states' pages
  for (const PageHandle page : request->pages) request->page_table.push_back(page.index);
  request->computed = depth * page_tokens_ + admission.in_page.tokens;
  request->snapshot = state_pages_ > 0 ? admission.in_page.node : NodeId{};
  request->snapshot_at = static_cast<std::int32_t>(request->computed);
  request->charged = std::max(request->charged, request->computed);  // cached tokens are not charged
  if (request->cached_tokens >= 0 || !tree_.keeps_history()) return;
  request->cached_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(request->computed, request->prompt_tokens));
  if (state_pages_ > 0 && tree_.nodes().Exists(request->deepest))
    interval_.Began(tree_.nodes().KvDepth(request->deepest) * page_tokens_ - request->computed);
  CountPrefix(*request, 1);
}

void RequestPages::Allocate(const PlannedChunk& chunk, TimeNs now) {
  Request* request = chunk.request;
  if (chunk.takes_snapshot) TakeSnapshot(request, now);
  std::int64_t new_pages = chunk.new_pages;
  if (state_pages_ > 0 && request->states.empty()) {
    request->states.resize(static_cast<std::size_t>(state_pages_));
    CHECK(device_.Allocate(PageCategory::kKv, request->states));
    for (std::size_t i = 0; i < request->states.size(); ++i) request->page_table[i] = request->states[i].index;
    new_pages -= state_pages_;
  }
  if (new_pages == 0) return;
  const std::size_t old_size = request->pages.size();
  request->pages.resize(old_size + static_cast<std::size_t>(new_pages));
  const std::span<PageHandle> added = std::span(request->pages).subspan(old_size);
  CHECK(device_.Allocate(PageCategory::kKv, added));
  for (const PageHandle page : added) request->page_table.push_back(page.index);
}

void RequestPages::Fetch(const Move& fetch, Request& request, TimeNs now) {
  const bool ahead = fetch.why == MoveReason::kAhead;
  if (ahead)
    request.fetched_ahead = true;
  else
    ++request.fetches;
  const std::int64_t of_states = std::min<std::int64_t>(fetch.pages, tree_.nodes().At(fetch.item.node).state);
  request.fetched_tokens += static_cast<std::int32_t>((fetch.pages - of_states) * page_tokens_);
  tree_.Unwant(request.tail);  // want the end of the fetched path, so that it is evicted last
  request.tail = fetch.item.node;
  tree_.Want(request.tail);
  tiers_.Fetch(request.tail, request.id, now, ahead);
}

void RequestPages::Fill(Request* request, TimeNs now) {
  if (state_pages_ == 0) HandOver(request, now);
}

// No step is in flight, so a page can be freed at once if the tree already has its content.
void RequestPages::HandOver(Request* request, TimeNs now) {
  const auto size = static_cast<std::size_t>(page_tokens_);
  const auto done = static_cast<std::size_t>(request->tree_pages) * size,
             computed = static_cast<std::size_t>(std::min(request->computed, request->treelike_tokens()));
  if (computed >= done + 2 * size) {
    tree_.PrefetchInsert(request->tail, std::span<const TokenId>(request->tokens).subspan(done, computed - done));
  }
  for (; (static_cast<std::size_t>(request->tree_pages) + 1) * size <= computed; ++request->tree_pages) {
    const auto at = static_cast<std::size_t>(request->tree_pages);
    const std::span<const TokenId> tokens = std::span<const TokenId>(request->tokens).subspan(at * size, size);
    const auto inserted = tree_.Insert(request->tail, tokens, request->pages[at], now);
    if (inserted.outcome == DependencyTree::Inserted::kNotNow) return;
    request->tail = inserted.node;
    if (inserted.outcome == DependencyTree::Inserted::kTaken) continue;
    device_.Free(PageCategory::kKv, std::span(&request->pages[at], 1));
    request->pages[at] = tree_.tiers().Page(inserted.node);
    request->page_table[static_cast<std::size_t>(state_pages_) + at] = request->pages[at].index;
  }
}

// Where a fetch is bringing one of the pages, nothing comes of it. Of the snapshot's pages the tree may have the first
// ones: those stay the request's own.
void RequestPages::TakeSnapshot(Request* request, TimeNs now) {
  HandOver(request, now);
  if (request->tree_pages * page_tokens_ != request->computed) return;
  NodeId at = request->tail;
  for (std::size_t i = 0; i < request->states.size(); ++i) {
    const auto inserted = tree_.InsertState(at, request->states[i], now);
    if (inserted.outcome == DependencyTree::Inserted::kNotNow) break;
    at = inserted.node;
    if (inserted.outcome == DependencyTree::Inserted::kExisted) continue;
    CHECK(device_.Allocate(PageCategory::kKv, std::span(&request->states[i], 1)));
    request->page_table[i] = request->states[i].index;
  }
  if (at == request->tail) return;
  const bool whole = tree_.nodes().At(at).state == state_pages_;
  if (whole && request->snapshot != at && interval_.Passes(request->prompt_tokens, request->snapshot_at))
    DropSnapshot(request->snapshot);
  request->copied_from = request->snapshot = at;
  request->snapshot_at = static_cast<std::int32_t>(request->computed);
  interval_.Taken(request->computed);
  ++prefix_stats_.snapshots;
}

void RequestPages::DropSnapshot(NodeId last) {
  const TreeNodes& nodes = tree_.nodes();
  if (!nodes.Exists(last) || nodes.At(last).state != state_pages_) return;
  ++prefix_stats_.dropped_snapshots;
  for (NodeId at = last; nodes.At(at).state > 0;) {
    const DependencyTree::NodeView view = tree_.View(at);
    if (view.users > 0 || view.wants > 0 || view.device_children > 0 || !tree_.tiers().OnDevice(at)) return;
    const NodeId parent = nodes.Parent(at);
    tree_.Evict(at);
    at = parent;
  }
}

// REQUIRES: no step that copies the pages is in flight. They have been copied, or will not be.
void RequestPages::EndCopy(Request* request, TimeNs now) {
  if (!request->copied_from.has_value()) return;
  tree_.EndUseAfter(request->tail, *request->copied_from, now);
  request->copied_from.reset();
}

void RequestPages::Return(Request* request, TimeNs now) {
  Release(request, now);
  request->tail = tree_.Beginning(request->tail);
  tree_.Want(request->tail);
}

void RequestPages::LeaveRunning(Request* request, TimeNs now) {
  if (BeganOnFailedFetch(*request)) tiers_.EndUse(request->tail);
  Release(request, now);
  tree_.ReleaseTop(request->top);
}

void RequestPages::LeaveWaiting(Request* request, std::span<Request* const> waiting) {
  tree_.Unwant(request->tail);
  if (tiers_.IsRequester(request->id)) {
    const bool shared = std::any_of(waiting.begin(), waiting.end(), [&](const Request* other) {
      return other != request && other->top == request->top;
    });
    if (!shared) tiers_.Cancel(request->id);
  }
  tree_.ReleaseTop(request->top);
}

void RequestPages::ChangeAdapter(Request* request, AdapterGeneration adapter, std::span<Request* const> waiting) {
  LeaveWaiting(request, waiting);
  request->adapter = adapter;
  request->tail = request->deepest = request->found = {};  // they are of the adapter before
  request->fetches = 0;
  request->fetched_ahead = false;
  if (request->cached_tokens < 0) request->fetched_tokens = 0;
  Enter(request);
}

void RequestPages::Release(Request* request, TimeNs now) {
  EndCopy(request, now);
  device_.Free(PageCategory::kKv, std::span(request->pages).subspan(static_cast<std::size_t>(request->tree_pages)));
  device_.Free(PageCategory::kKv, request->states);
  const bool had_snapshot = state_pages_ > 0 && tree_.tiers().HasDevicePage(request->snapshot);
  if (had_snapshot && tree_.nodes().At(request->snapshot).state == state_pages_) tree_.Renew(request->snapshot, now);
  tree_.EndUse(request->tail, now);
  request->states.clear();
  request->snapshot = {};
  request->snapshot_at = request->branches_at = 0;
  request->tree_pages = 0;
  request->pages.clear();
  request->page_table.clear();
  request->computed = 0;
  if (request->adapter != kBaseModel) residency_.EndUse(request->adapter, now);
}

// ---------------------------------------------------------------- Failed fetches

bool RequestPages::BeganOnFailedFetch(const Request& request) const {
  if (tree_.tiers().OnDevice(request.tail)) return false;
  const KvTiers::Job* fetch = tiers_.FetchOf(request.tail);
  CHECK(fetch != nullptr);
  return fetch->failed;
}

// What the request seemed to find is missing.
void RequestPages::UndoAdmission(Request* request) {
  if (request->preemptions == 0) {
    CountPrefix(*request, -1);
    request->cached_tokens = -1;
    request->fetched_tokens = 0;
    request->charged = 0;
  }
  tiers_.EndUse(request->tail);
}

void RequestPages::CountPrefix(const Request& request, std::int64_t sign) {
  prefix_stats_.looked_up_tokens += sign * request.prompt_tokens;
  prefix_stats_.found_tokens += sign * request.cached_tokens;
  prefix_stats_.from_host_tokens += sign * std::min(request.fetched_tokens, request.cached_tokens);
}

// ---------------------------------------------------------------- Integrity

void RequestPages::CheckIntegrity(std::span<Request* const> running, std::span<Request* const> waiting) const {
  std::int64_t kv_pages = 0;
  for (const Request* request : running) kv_pages += CheckPages(*request);
  for (const Request* request : waiting) {
    CHECK(request->pages.empty() && request->states.empty() && !request->copied_from.has_value());
    CHECK_EQ(request->computed, 0);
  }
  tree_.CheckIntegrity();
  kv_pages += tree_.tiers().pages() + tree_.tiers().orphans();
  CHECK_EQ(kv_pages, device_.Stats().used(PageCategory::kKv));
  CHECK_EQ(tree_.tiers().host_pages() + tree_.tiers().orphans(),
           residency_.pool(Tier::kHost).Stats().used(PageCategory::kKv));
  CheckUsers(running);
}

std::int64_t RequestPages::CheckPages(const Request& request) const {
  const std::size_t states = request.states.size();
  CHECK_EQ(static_cast<std::int64_t>(states), state_pages_);
  CHECK_EQ(states + request.pages.size(), request.page_table.size());
  CHECK_LE(request.computed, static_cast<std::int64_t>(request.pages.size()) * page_tokens_);
  for (std::size_t i = 0; i < request.pages.size(); ++i) {
    CHECK(device_.IsCurrent(request.pages[i]));
    CHECK_EQ(request.pages[i].index, request.page_table[states + i]);
  }
  for (std::size_t i = 0; i < states; ++i) {
    CHECK(device_.IsCurrent(request.states[i]));
    CHECK_EQ(request.states[i].index, request.page_table[i]);
  }
  CHECK_EQ(tree_.nodes().Depth(request.tail), request.tree_pages);
  if (request.copied_from.has_value()) {
    const NodeId from = *request.copied_from;
    CHECK((state_pages_ > 0 ? tree_.nodes().KvNode(from) : tree_.nodes().Parent(from)) == request.tail);
  }
  return request.own_pages();
}

void RequestPages::CheckUsers(std::span<Request* const> running) const {
  std::vector<std::int32_t> users(residency_.All().size(), 0);
  for (const Request* request : running) {
    if (request->adapter != kBaseModel) ++users[residency_.SlotOf(request->adapter)];
  }
  for (std::size_t i = 0; i < users.size(); ++i) CHECK_EQ(users[i], residency_.All()[i].users);
  CHECK_EQ(residency_.Stats().active,
           std::count_if(users.begin(), users.end(), [](std::int32_t count) { return count > 0; }));
}

}  // namespace loramux
