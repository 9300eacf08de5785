#include "cache/kv_tiers.h"

#include <algorithm>

#include "base/check.h"

namespace loramux {
namespace {

// FastLibra's lower threshold: with more than 70 % of the device in use, it counts as filling up.
constexpr double kFreeEnough = 0.3;
// Leaves to consider. The next victims must already have copies; later ones may still be used.
constexpr std::size_t kLeavesAhead = 128;

}  // namespace

void KvTiers::Submit(Tier from, Tier to, std::uint64_t id, const std::vector<DependencyTree::MovingPages>& pages,
                     std::shared_ptr<LayerProgress> progress) {
  TransferJob job;
  job.id = id;
  job.page_bytes = static_cast<std::size_t>(device_->page_bytes());
  job.progress = std::move(progress);
  job.layer_bytes = slices_.layer_bytes;
  job.from.tier = from;
  job.to.tier = to;
  for (const DependencyTree::MovingPages& page : pages) {
    CHECK(device_->IsCurrent(page.device) && host_->IsCurrent(page.host));
    job.from.pages.push_back((from == Tier::kHost ? page.host : page.device).index);
    job.to.pages.push_back((to == Tier::kHost ? page.host : page.device).index);
  }
  transfer_->Submit(std::move(job));
}

// ---------------------------------------------------------------- To the device

void KvTiers::Fetch(NodeId tail, RequestId requester, TimeNs now, bool ahead) {
  Fetching fetch{.id = next_id_++,
                 .requester = requester,
                 .ahead = ahead,
                 .progress = std::make_shared<LayerProgress>(slices_.layers),
                 .begun = now};
  tree_.BeginFetch(tail, fetch.pages);
  Submit(Tier::kHost, Tier::kDevice, fetch.id, fetch.pages, fetch.progress);
  fetches_.push_back(std::move(fetch));
}

void KvTiers::FetchAhead(std::span<const NodeId> tails) {
  CHECK(!fetching_ahead());
  if (tails.empty()) return;
  for (const NodeId tail : tails) {
    tree_.BeginFetch(tail, ahead_pages_);
    ahead_ends_.push_back(ahead_pages_.size());
  }
  ahead_id_ = next_id_++;
  Submit(Tier::kHost, Tier::kDevice, ahead_id_, ahead_pages_, std::make_shared<LayerProgress>(slices_.layers));
}

void KvTiers::Cancel(RequestId requester) {
  for (Fetching& fetch : fetches_) {
    if (fetch.requester == requester && fetch.users == 0) fetch.progress->Cancel();
  }
}

bool KvTiers::IsRequester(RequestId id) const {
  return std::any_of(fetches_.begin(), fetches_.end(), [id](const Fetching& fetch) { return fetch.requester == id; });
}

// A fetch brings the whole part of one path that is not on the device, so the topmost such node identifies it.
const KvTiers::Fetching* KvTiers::FetchOf(NodeId node) const {
  if (fetches_.empty() || tree_.tiers().OnDevice(node)) return nullptr;
  while (!tree_.tiers().OnDevice(tree_.nodes().Parent(node))) node = tree_.nodes().Parent(node);
  const auto found = std::find_if(fetches_.begin(), fetches_.end(),
                                  [node](const Fetching& fetch) { return fetch.pages.front().node == node; });
  return found == fetches_.end() ? nullptr : &*found;
}

bool KvTiers::AnyInUse() const {
  return std::any_of(fetches_.begin(), fetches_.end(),
                     [](const Fetching& fetch) { return fetch.users > 0 && !fetch.failed; });
}

bool KvTiers::AnyFailed() const {
  return std::any_of(fetches_.begin(), fetches_.end(), [](const Fetching& fetch) { return fetch.failed; });
}

void KvTiers::EndFailedFetches() {
  for (const Fetching& fetch : fetches_) {
    if (!fetch.failed) continue;
    CHECK_EQ(fetch.users, 0);
    tree_.EndFetch(fetch.pages, /*failed=*/true);
  }
  std::erase_if(fetches_, [](const Fetching& fetch) { return fetch.failed; });
}

void KvTiers::EndFetch(Fetching& fetch, const TransferCompletion& completion, TimeNs now) {
  fetch.failed = completion.cancelled || completion.error.has_value();
  stats_.failed_jobs += completion.error.has_value();
  stats_.cancelled_fetches += completion.cancelled;
  if (!completion.cancelled) {
    ++(fetch.ahead ? stats_.fetches_ahead : stats_.fetches);
    if (!fetch.ahead) stats_.fetch_time_total += now - fetch.begun;
  }
  if (fetch.failed && fetch.users > 0) return;  // EndFailedFetches ends it
  if (!fetch.failed) stats_.pages_fetched += static_cast<std::int64_t>(fetch.pages.size());
  tree_.EndFetch(fetch.pages, fetch.failed);
  fetches_.erase(fetches_.begin() + (&fetch - fetches_.data()));
}

void KvTiers::EndFetchAhead(bool failed) {
  std::size_t begin = 0;
  for (const std::size_t end : ahead_ends_) {
    tree_.EndFetch(std::span(ahead_pages_).subspan(begin, end - begin), failed);
    begin = end;
  }
  stats_.failed_jobs += failed;
  if (!failed) stats_.pages_fetched_ahead += static_cast<std::int64_t>(ahead_pages_.size());
  ahead_pages_.clear();
  ahead_ends_.clear();
}

// ---------------------------------------------------------------- To the host tier

// Makes `pages` host pages available where `pages` - 1 already are. Drops at most one page, and only one of less worth
// than `worth` (HostWorth). Returns false if that is impossible.
bool KvTiers::MakeHostRoom(std::int64_t pages, TimeNs worth) {
  if (host_->free_pages() >= pages) return true;
  if (tree_.LeastHostWorth() >= worth) return false;
  tree_.DropHostPages(1);
  return true;
}

void KvTiers::BackUp(const KvEvictionPlan& plan, std::span<const NodeId> running) {
  const auto most = static_cast<std::size_t>(max_pages_of_job_);
  if (most == 0 || backing_up()) return;
  const auto free = static_cast<double>(device_->free_pages()),
             capacity = static_cast<double>(device_->capacity_pages());
  if (free > kFreeEnough * capacity) return;
  soon_.clear();
  plan.AppendNext(kLeavesAhead, soon_);
  std::erase_if(soon_, [this](NodeId leaf) { return !tree_.nodes().Exists(leaf) || tree_.View(leaf).locks > 0; });
  const bool few_idle = free + static_cast<double>(tree_.tiers().idle_pages()) < kFreeEnough * capacity;
  if (few_idle) soon_.insert(soon_.end(), running.begin(), running.end());
  for (const NodeId tail : soon_) {
    BackUpPath(tail, most - backing_up_.size());
    if (backing_up_.size() == most) break;
  }
  if (backing_up_.empty()) return;
  back_up_id_ = next_id_++;
  Submit(Tier::kDevice, Tier::kHost, back_up_id_, backing_up_, nullptr);
}

// Backs up a node together with its ancestors: when the node is evicted they become leaves, and a copy is useless
// without its ancestors' copies. The nodes are chosen before the transfer begins, because a transfer locks the whole
// path.
void KvTiers::BackUpPath(NodeId tail, std::size_t most) {
  chain_.clear();
  for (NodeId at = tail; tree_.nodes().Exists(at) && tree_.nodes().Depth(at) > 0; at = tree_.nodes().Parent(at)) {
    // For a node in transfer, the copy is already on its way.
    if (!tree_.tiers().OnDevice(at) || tree_.tiers().InHostTier(at) || tree_.tiers().Moving(at)) break;
    chain_.push_back(at);
  }
  std::reverse(chain_.begin(), chain_.end());
  std::size_t count = 0;
  while (count < std::min(most, chain_.size()) &&
         MakeHostRoom(static_cast<std::int64_t>(count) + 1, tree_.reuse().HostWorth(chain_[count]))) {
    ++count;
  }
  if (count == 0) return;
  tree_.BeginBackUp(std::span(chain_).first(count), backing_up_);
  backing_up_ends_.push_back(backing_up_.size());
}

void KvTiers::EndBackUp(bool failed) {
  std::size_t begin = 0;
  for (const std::size_t end : backing_up_ends_) {
    tree_.EndBackUp(std::span(backing_up_).subspan(begin, end - begin), failed);
    begin = end;
  }
  backing_up_ends_.clear();
  stats_.failed_jobs += failed;
  if (!failed) stats_.pages_backed_up += static_cast<std::int64_t>(backing_up_.size());
  backing_up_.clear();
}

bool KvTiers::Poll(TimeNs now) {
  if (transfer_ == nullptr) return false;
  bool any = false;
  while (const std::optional<TransferCompletion> done = transfer_->Poll()) {
    any = true;
    if (!backing_up_.empty() && done->id == back_up_id_) {
      EndBackUp(done->error.has_value());
      continue;
    }
    if (fetching_ahead() && done->id == ahead_id_) {
      EndFetchAhead(done->error.has_value());
      continue;
    }
    const auto fetch =
        std::find_if(fetches_.begin(), fetches_.end(), [&](const Fetching& f) { return f.id == done->id; });
    CHECK(fetch != fetches_.end());
    EndFetch(*fetch, *done, now);
  }
  for (const Fetching& fetch : fetches_) fetch.progress->Look();
  return any;
}

}  // namespace loramux
