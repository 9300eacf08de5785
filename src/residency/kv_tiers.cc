#include "residency/kv_tiers.h"

#include <algorithm>

#include "base/check.h"

namespace loramux {

void KvTiers::Submit(Tier from, Tier to, Job& job) {
  job.id = next_id_++;
  if (to == Tier::kDevice) job.progress = std::make_shared<LayerProgress>(slices_.layers);
  TransferJob transfer{.id = job.id,
                       .from = {from, {}},
                       .to = {to, {}},
                       .page_bytes = static_cast<std::size_t>(device_->page_bytes()),
                       .progress = job.progress,
                       .layer_bytes = slices_.layer_bytes};
  for (const DependencyTree::MovingPages& page : job.pages) {
    CHECK(device_->IsCurrent(page.device) && host_->IsCurrent(page.host));
    transfer.from.pages.push_back((from == Tier::kHost ? page.host : page.device).index);
    transfer.to.pages.push_back((to == Tier::kHost ? page.host : page.device).index);
  }
  transfer_->Submit(std::move(transfer));
}

void KvTiers::EndMoves(const Job& job, bool failed) {
  std::size_t begin = 0;
  for (const std::size_t end : job.ends) {
    tree_.EndMove(std::span(job.pages).subspan(begin, end - begin), failed);
    begin = end;
  }
}

std::int64_t KvTiers::EndBeside(Job& job, bool failed) {
  EndMoves(job, failed);
  stats_.failed_jobs += failed;
  const std::size_t pages = job.pages.size();
  job = {};
  return failed ? 0 : static_cast<std::int64_t>(pages);
}

// ---------------------------------------------------------------- To the device

void KvTiers::AddPath(NodeId tail, Job& job) {
  tree_.BeginFetch(tail, job.pages);
  job.ends.push_back(job.pages.size());
}

void KvTiers::Fetch(NodeId tail, RequestId requester, TimeNs now, bool ahead) {
  Job& fetch = fetches_.emplace_back(Job{.requester = requester, .ahead = ahead, .begun = now});
  AddPath(tail, fetch);
  Submit(Tier::kHost, Tier::kDevice, fetch);
}

void KvTiers::FetchAhead(std::span<const Move> moves) {
  const bool idle = !fetching_ahead();
  for (const Move& move : moves) {
    if (!move.is_fetch()) continue;
    CHECK(idle);
    AddPath(move.item.node, ahead_);
  }
  if (idle && fetching_ahead()) Submit(Tier::kHost, Tier::kDevice, ahead_);
}

void KvTiers::Cancel(RequestId requester) {
  for (Job& fetch : fetches_) {
    if (fetch.requester == requester && fetch.users == 0) fetch.progress->Cancel();
  }
}

bool KvTiers::IsRequester(RequestId id) const {
  return std::any_of(fetches_.begin(), fetches_.end(), [id](const Job& fetch) { return fetch.requester == id; });
}

// A fetch brings the whole part of one path that is not on the device, so the topmost such node identifies it.
const KvTiers::Job* KvTiers::FetchOf(NodeId node) const {
  if (fetches_.empty() || tree_.tiers().OnDevice(node)) return nullptr;
  while (!tree_.tiers().OnDevice(tree_.nodes().Parent(node))) node = tree_.nodes().Parent(node);
  const auto found = std::find_if(fetches_.begin(), fetches_.end(),
                                  [node](const Job& fetch) { return fetch.pages.front().node == node; });
  return found == fetches_.end() ? nullptr : &*found;
}

bool KvTiers::AnyFailed() const {
  return std::any_of(fetches_.begin(), fetches_.end(), [](const Job& fetch) { return fetch.failed; });
}

void KvTiers::EndFailedFetches() {
  for (const Job& fetch : fetches_) {
    if (!fetch.failed) continue;
    CHECK_EQ(fetch.users, 0);
    EndMoves(fetch, /*failed=*/true);
  }
  std::erase_if(fetches_, [](const Job& fetch) { return fetch.failed; });
}

void KvTiers::EndFetch(Job& fetch, const TransferCompletion& completion, TimeNs now) {
  fetch.failed = completion.cancelled || completion.error.has_value();
  stats_.failed_jobs += completion.error.has_value();
  stats_.cancelled_fetches += completion.cancelled;
  if (!completion.cancelled) {
    ++(fetch.ahead ? stats_.fetches_ahead : stats_.fetches);
    if (!fetch.ahead) stats_.fetch_time_total += now - fetch.begun;
  }
  if (fetch.failed && fetch.users > 0) return;  // EndFailedFetches ends it
  if (!fetch.failed) stats_.pages_fetched += static_cast<std::int64_t>(fetch.pages.size());
  EndMoves(fetch, fetch.failed);
  fetches_.erase(fetches_.begin() + (&fetch - fetches_.data()));
}

// ---------------------------------------------------------------- To the host tier

void KvTiers::BackUp(std::span<const Move> moves) {
  CHECK(!backing_up());
  const auto begin = [this] {
    if (chain_.empty()) return;
    tree_.BeginBackUp(chain_, back_up_.pages);
    back_up_.ends.push_back(back_up_.pages.size());
    chain_.clear();
  };
  for (const Move& move : moves) {
    if (move.to != Tier::kHost || move.item.is_adapter()) continue;
    const NodeId node = move.item.node;
    if (!chain_.empty() && tree_.nodes().Parent(node) != chain_.back()) begin();  // another path
    chain_.push_back(node);
  }
  begin();
  if (backing_up()) Submit(Tier::kDevice, Tier::kHost, back_up_);
}

void KvTiers::End(const TransferCompletion& done, TimeNs now) {
  if (backing_up() && done.id == back_up_.id) {
    stats_.pages_backed_up += EndBeside(back_up_, done.error.has_value());
    return;
  }
  if (fetching_ahead() && done.id == ahead_.id) {
    stats_.pages_fetched_ahead += EndBeside(ahead_, done.error.has_value());
    return;
  }
  const auto fetch = std::find_if(fetches_.begin(), fetches_.end(), [&](const Job& f) { return f.id == done.id; });
  CHECK(fetch != fetches_.end());
  EndFetch(*fetch, done, now);
}

}  // namespace loramux
