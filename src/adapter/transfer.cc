#include "adapter/transfer.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "base/check.h"

namespace loramux {

Status RunTransfer(const TransferJob& job) {
  if (job.kind == TransferKind::kHostToDevice || job.kind == TransferKind::kDeviceToHost) {
    CHECK_EQ(job.source.size(), job.destination.size());
    for (std::size_t i = 0; i < job.source.size(); ++i) {
      std::memcpy(job.destination[i], job.source[i], job.page_bytes);
    }
    return Ok{};
  }
  return PackAdapter(job.adapter->file, job.adapter->layout, job.destination, job.page_bytes);
}

namespace {

TransferCompletion Complete(const TransferJob& job) {
  TransferCompletion completion{job.id, std::nullopt};
  const Status status = RunTransfer(job);
  if (!status.ok()) completion.error = status.error();
  return completion;
}

}  // namespace

struct ThreadedTransfer::State {
  std::mutex mutex;
  std::condition_variable work;
  std::deque<TransferJob> jobs;
  std::deque<TransferCompletion> done;
  bool stopping = false;
  std::function<void()> on_completion;
  std::thread worker;

  void Run() {
    std::unique_lock lock(mutex);
    while (true) {
      work.wait(lock, [this] { return stopping || !jobs.empty(); });
      if (stopping) return;
      const TransferJob job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      TransferCompletion completion = Complete(job);
      lock.lock();
      done.push_back(std::move(completion));
      lock.unlock();
      on_completion();
      lock.lock();
    }
  }
};

ThreadedTransfer::ThreadedTransfer(std::function<void()> on_completion) : state_(std::make_unique<State>()) {
  state_->on_completion = std::move(on_completion);
  state_->worker = std::thread([state = state_.get()] { state->Run(); });
}

ThreadedTransfer::~ThreadedTransfer() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->work.notify_all();
  state_->worker.join();
}

void ThreadedTransfer::Submit(TransferJob job) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->jobs.push_back(std::move(job));
  }
  state_->work.notify_one();
}

std::optional<TransferCompletion> ThreadedTransfer::Poll() {
  const std::lock_guard lock(state_->mutex);
  if (state_->done.empty()) return std::nullopt;
  TransferCompletion completion = std::move(state_->done.front());
  state_->done.pop_front();
  return completion;
}

void InlineTransfer::Submit(TransferJob job) { done_.push_back(Complete(job)); }

void ModeledTransfer::Submit(TransferJob job) {
  const bool from_host = job.kind == TransferKind::kHostToDevice || job.kind == TransferKind::kDeviceToHost;
  const Link& link = from_host ? host_ : disk_;
  TimeNs& free_at = from_host ? host_free_at_ : disk_free_at_;
  const double bytes = static_cast<double>(job.destination.size() * job.page_bytes);
  free_at = std::max(free_at, clock_->Now()) +
            static_cast<TimeNs>(bytes / link.bytes_per_second * static_cast<double>(kNsPerSecond));
  TransferCompletion completion{job.id, fault_ ? fault_(job) : std::nullopt};
  moving_.push_back({free_at + link.latency_ns, std::move(completion), std::move(job)});
}

std::optional<TransferCompletion> ModeledTransfer::Poll() {
  const auto earliest = std::min_element(moving_.begin(), moving_.end(),
                                         [](const Moving& a, const Moving& b) { return a.end < b.end; });
  if (earliest == moving_.end() || earliest->end > clock_->Now()) return std::nullopt;
  TransferCompletion completion = std::move(earliest->completion);
  if (earliest->job.adapter == nullptr && !completion.error.has_value()) CHECK(RunTransfer(earliest->job).ok());
  moving_.erase(earliest);
  return completion;
}

TimeNs ModeledTransfer::next_end() const {
  TimeNs next = -1;
  for (const Moving& transfer : moving_) {
    if (next < 0 || transfer.end < next) next = transfer.end;
  }
  return next;
}

std::optional<TransferCompletion> InlineTransfer::Poll() {
  if (done_.empty()) return std::nullopt;
  TransferCompletion completion = std::move(done_.front());
  done_.erase(done_.begin());
  return completion;
}

}  // namespace loramux
