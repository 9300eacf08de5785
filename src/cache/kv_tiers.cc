#include "cache/kv_tiers.h"

#include <algorithm>

#include "base/check.h"

namespace loramux {
namespace {

// FastLibra's lower threshold: above 70 % the device counts as filling up.
constexpr double kFreeEnough = 0.3;
// Leaves that are looked at: what is evicted next must be copied already, what goes much later may still be used.
constexpr std::size_t kLeavesAhead = 128;

}  // namespace

void KvTiers::Submit(Job job) {
  TransferJob transfer;
  transfer.id = job.id = next_id_++;
  transfer.kind = job.fetch ? TransferKind::kHostToDevice : TransferKind::kDeviceToHost;
  transfer.page_bytes = static_cast<std::size_t>(device_->page_bytes());
  for (const DependencyTree::MovingPages& pages : job.pages) {
    std::byte* const device = device_->Data(pages.device);
    std::byte* const host = host_->Data(pages.host);
    transfer.source.push_back(job.fetch ? host : device);
    transfer.destination.push_back(job.fetch ? device : host);
  }
  jobs_.push_back(std::move(job));
  transfer_->Submit(std::move(transfer));
}

void KvTiers::Fetch(NodeId tail, TimeNs now, bool ahead) {
  Job job{.fetch = true, .ahead = ahead, .begun = now};
  tree_->BeginFetch(tail, job.pages);
  job.ends.push_back(job.pages.size());
  ++fetches_in_flight_;
  Submit(std::move(job));
}

void KvTiers::FetchAhead(std::span<const NodeId> tails, TimeNs now) {
  CHECK(!fetching_ahead_);
  if (tails.empty()) return;
  Job job{.fetch = true, .for_nobody = true, .begun = now};
  for (const NodeId tail : tails) {
    tree_->BeginFetch(tail, job.pages);
    job.ends.push_back(job.pages.size());
  }
  fetching_ahead_ = true;
  Submit(std::move(job));
}

// For a page that was last used then. What is older gives way.
bool KvTiers::MakeHostRoom(TimeNs last_use) {
  if (host_->free_pages() > 0) return true;
  if (tree_->OldestHostUse() >= last_use) return false;
  tree_->DropHostPages(1);
  return true;
}

std::int64_t KvTiers::MaxPagesOfJob() const {
  return std::clamp<std::int64_t>(device_->capacity_pages() / 32, 1, kMaxPagesOfJob);
}

void KvTiers::BackUp(const KvEvictionPlan& plan) {
  const auto free = static_cast<double>(device_->free_pages()), capacity = static_cast<double>(device_->capacity_pages());
  if (backing_up_ || free > kFreeEnough * capacity) return;
  const auto most = static_cast<std::size_t>(MaxPagesOfJob());
  soon_.clear();
  plan.AppendNext(kLeavesAhead, soon_);
  Job job;
  for (const NodeId leaf : soon_) {
    // With its parents, which are leaves when it is gone, and these first: a copy is of no use without its parents'.
    // Chosen before any begins: a move holds the whole path.
    chain_.clear();
    for (NodeId at = leaf; tree_->Exists(at) && tree_->Depth(at) > 0; at = tree_->Parent(at)) {
      const bool idle = tree_->View(at).locks == 0 && tree_->OnDevice(at);
      if (!idle || tree_->InHostTier(at)) break;
      chain_.push_back(at);
    }
    for (; !chain_.empty() && job.pages.size() < most; chain_.pop_back()) {
      if (!MakeHostRoom(tree_->View(chain_.back()).last_use)) break;
      const auto pages = tree_->BeginBackUp(chain_.back());
      CHECK(pages.has_value());
      job.pages.push_back(*pages);
    }
    if (job.pages.size() == most) break;
  }
  if (job.pages.empty()) return;
  backing_up_ = true;
  Submit(std::move(job));
}

void KvTiers::EndFetches(const Job& job, bool failed, TimeNs now) {
  std::size_t begin = 0;
  for (const std::size_t end : job.ends) {
    tree_->EndFetch(std::span(job.pages).subspan(begin, end - begin), failed);
    begin = end;
  }
  const auto pages = failed ? 0 : static_cast<std::int64_t>(job.pages.size());
  if (job.for_nobody) {
    fetching_ahead_ = false;
    stats_.pages_fetched_ahead += pages;
    return;
  }
  --fetches_in_flight_;
  ++(job.ahead ? stats_.fetches_ahead : stats_.fetches);
  if (!job.ahead) stats_.fetch_time_total += now - job.begun;
  stats_.pages_fetched += pages;
}

bool KvTiers::Poll(TimeNs now) {
  bool any = false;
  while (const std::optional<TransferCompletion> done = transfer_->Poll()) {
    const auto job = std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& j) { return j.id == done->id; });
    CHECK(job != jobs_.end());
    const bool failed = done->error.has_value();
    stats_.failed_jobs += failed;
    if (job->fetch) {
      EndFetches(*job, failed, now);
    } else {
      for (const DependencyTree::MovingPages& page : job->pages) tree_->EndBackUp(page, failed);
      backing_up_ = false;
      if (!failed) stats_.pages_backed_up += static_cast<std::int64_t>(job->pages.size());
    }
    jobs_.erase(job);
    any = true;
  }
  return any;
}

}  // namespace loramux
