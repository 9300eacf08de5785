#include "cache/kv_tiers.h"

#include <algorithm>

#include "base/check.h"

namespace loramux {

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

void KvTiers::FetchAhead(std::span<const Move> moves) {
  if (std::none_of(moves.begin(), moves.end(), [](const Move& move) { return move.is_fetch(); })) return;
  CHECK(!fetching_ahead());
  for (const Move& move : moves) {
    if (!move.is_fetch()) continue;
    tree_.BeginFetch(move.item.node, ahead_pages_);
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

void KvTiers::BackUp(std::span<const Move> moves) {
  CHECK(!backing_up());
  const auto begin = [this] {
    if (chain_.empty()) return;
    tree_.BeginBackUp(chain_, backing_up_);
    backing_up_ends_.push_back(backing_up_.size());
    chain_.clear();
  };
  for (const Move& move : moves) {
    if (move.to != Tier::kHost || move.item.is_adapter()) continue;
    const NodeId node = move.item.node;
    if (!chain_.empty() && tree_.nodes().Parent(node) != chain_.back()) begin();  // another path
    chain_.push_back(node);
  }
  begin();
  if (backing_up_.empty()) return;
  back_up_id_ = next_id_++;
  Submit(Tier::kDevice, Tier::kHost, back_up_id_, backing_up_, nullptr);
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

void KvTiers::End(const TransferCompletion& done, TimeNs now) {
  if (backing_up() && done.id == back_up_id_) return EndBackUp(done.error.has_value());
  if (fetching_ahead() && done.id == ahead_id_) return EndFetchAhead(done.error.has_value());
  const auto fetch = std::find_if(fetches_.begin(), fetches_.end(), [&](const Fetching& f) { return f.id == done.id; });
  CHECK(fetch != fetches_.end());
  EndFetch(*fetch, done, now);
}

}  // namespace loramux
