#include "residency/transfer.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "base/check.h"

namespace loramux {

namespace {

bool FromDisk(const TransferJob& job) { return job.from.tier == Tier::kDisk; }

bool IsCancelled(const TransferJob& job) { return job.progress != nullptr && job.progress->cancelled(); }

// The number of pages that the adapter's first `layers` layers need.
std::size_t AdapterPages(const TransferJob& job, std::int32_t layers) {
  const std::vector<std::int32_t>& of_layer = job.adapter->layout.layer_pages;
  if (layers == 0) return 0;
  return layers < LayersOf(job) ? static_cast<std::size_t>(of_layer[static_cast<std::size_t>(layers - 1)])
                                : job.from.pages.size();
}

// Ends the waiting on a cancelled or failed job.
TransferCompletion End(const TransferJob& job, TransferCompletion completion) {
  const bool good = !completion.cancelled && !completion.error.has_value();
  if (job.progress == nullptr) return completion;
  if (!good)
    job.progress->Fail();
  else if (FromDisk(job))
    job.progress->Publish(job.progress->layers());
  return completion;
}

TransferCompletion PackFromDisk(const TransferJob& job, const PageArena& to,
                                const std::function<void(std::size_t)>& after_layer) {
  std::vector<std::byte*> pages;
  pages.reserve(job.to.pages.size());
  for (const std::uint32_t page : job.to.pages) pages.push_back(to.Page(page));
  std::function<void(std::int32_t)> arrived;
  if (LayersOf(job) > 1) {
    // The last layer is published with the completion (End).
    arrived = [&](std::int32_t layers) {
      if (layers >= job.progress->layers()) return;
      if (after_layer) after_layer(0);
      job.progress->Publish(layers);
    };
  }
  const Status packed = PackAdapter(
      job.adapter->file, job.adapter->layout, pages, job.page_bytes, [&job] { return IsCancelled(job); }, arrived);
  if (packed.ok()) return {job.id, std::nullopt};
  if (IsCancelled(job)) return {job.id, std::nullopt, /*cancelled=*/true};
  return {job.id, packed.error()};
}

}  // namespace

TransferKind TransferJob::kind() const {
  CHECK(from.tier != to.tier);
  if (from.tier == Tier::kDisk) return to.tier == Tier::kHost ? TransferKind::kDiskToHost : TransferKind::kDiskToDevice;
  return to.tier == Tier::kHost ? TransferKind::kDeviceToHost : TransferKind::kHostToDevice;
}

std::size_t TransferJob::queue() const {
  const TransferKind of = kind();
  if (of == TransferKind::kDeviceToHost) return 2;
  return of == TransferKind::kHostToDevice ? 1 : 0;
}

std::int64_t PayloadBytes(const TransferJob& job) {
  const auto pages = static_cast<std::int64_t>(job.to.pages.size() * job.page_bytes);
  return job.adapter == nullptr ? pages : std::min(pages, static_cast<std::int64_t>(job.adapter->layout.payload_bytes));
}

std::int32_t LayersOf(const TransferJob& job) {
  const bool layered = job.adapter != nullptr ? !job.adapter->layout.layer_pages.empty() : job.layer_bytes > 0;
  return layered && job.progress != nullptr && (job.by_layer || !FromDisk(job)) ? job.progress->layers() : 1;
}

PagePart PartOfLayers(const TransferJob& job, std::int32_t first, std::int32_t end) {
  CHECK_EQ(job.from.pages.size(), job.to.pages.size());
  if (job.adapter != nullptr) return {AdapterPages(job, first), AdapterPages(job, end), 0, job.page_bytes};
  PagePart part{0, job.from.pages.size(), static_cast<std::size_t>(first) * job.layer_bytes};
  const bool last = end == LayersOf(job);
  part.bytes = (last ? job.page_bytes : static_cast<std::size_t>(end) * job.layer_bytes) - part.offset;
  return part;
}

std::size_t CopyLayer(const TransferJob& job, const TierMemory& memory, std::int32_t layer) {
  const PageArena &from = memory.Of(job.from.tier), &to = memory.Of(job.to.tier);
  const PagePart part = PartOfLayers(job, layer, layer + 1);
  for (std::size_t i = part.first; i < part.end; ++i) {
    std::memcpy(to.Page(job.to.pages[i]) + part.offset, from.Page(job.from.pages[i]) + part.offset, part.bytes);
  }
  return part.total();
}

TransferCompletion RunTransfer(const TransferJob& job, const TierMemory& memory,
                               const std::function<void(std::size_t)>& after_layer) {
  if (FromDisk(job)) {
    const PageArena& to = memory.Of(job.to.tier);
    return End(job,
               IsCancelled(job) ? TransferCompletion{job.id, std::nullopt, true} : PackFromDisk(job, to, after_layer));
  }
  const std::int32_t layers = LayersOf(job);
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    if (IsCancelled(job)) return End(job, {job.id, std::nullopt, /*cancelled=*/true});
    const std::size_t bytes = CopyLayer(job, memory, layer);
    // Called before publishing: the delay of a slow link is part of the transfer.
    if (after_layer) after_layer(bytes);
    if (job.progress != nullptr) job.progress->Publish(layers == 1 ? job.progress->layers() : layer + 1);
  }
  return End(job, {job.id, std::nullopt});
}

struct ThreadedTransfer::State {
  // The jobs of one queue and the thread that runs them.
  struct Queue {
    std::condition_variable work;
    std::deque<TransferJob> jobs;
    std::shared_ptr<LayerProgress> at_hand;  // progress of the running job; null: none runs
    std::thread worker;
  };
  std::mutex mutex;
  std::array<Queue, kTransferQueues> queues;
  std::deque<TransferCompletion> done;
  bool stopping = false;
  std::function<void()> on_completion;
  TierMemory memory;
  ThreadedTransferOptions options;
  OsClock clock;

  void Run(Queue& queue) {
    std::unique_lock lock(mutex);
    while (true) {
      queue.work.wait(lock, [&] { return stopping || !queue.jobs.empty(); });
      if (stopping) return;
      const TransferJob job = std::move(queue.jobs.front());
      queue.jobs.pop_front();
      queue.at_hand = job.progress;
      lock.unlock();
      TransferCompletion completion = Move(job);
      lock.lock();
      queue.at_hand = nullptr;
      done.push_back(std::move(completion));
      lock.unlock();
      on_completion();
      lock.lock();
    }
  }

  // Wakes the engine at the latest with the layer that follows the publication of the lead.
  TransferCompletion Move(const TransferJob& job) {
    TimeNs due = clock.Now();
    bool told = job.progress == nullptr;
    const auto tell = [&] {
      if (told || job.progress->arrived() < job.progress->lead()) return;
      told = true;
      on_completion();
    };
    return RunTransfer(job, memory, [&](std::size_t bytes) {
      tell();
      if (options.bytes_per_second <= 0) return;
      due += static_cast<TimeNs>(static_cast<double>(bytes) / options.bytes_per_second *
                                 static_cast<double>(kNsPerSecond));
      std::this_thread::sleep_for(std::chrono::nanoseconds(std::max<TimeNs>(0, due - clock.Now())));
    });
  }
};

ThreadedTransfer::ThreadedTransfer(std::function<void()> on_completion, const TierMemory& memory,
                                   ThreadedTransferOptions options)
    : state_(std::make_unique<State>()) {
  state_->on_completion = std::move(on_completion);
  state_->memory = memory;
  state_->options = options;
  for (State::Queue& queue : state_->queues)
    queue.worker = std::thread([state = state_.get(), &queue] { state->Run(queue); });
}

ThreadedTransfer::~ThreadedTransfer() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    for (const State::Queue& queue : state_->queues) {
      if (queue.at_hand != nullptr) queue.at_hand->Cancel();
      for (const TransferJob& job : queue.jobs) {
        if (job.progress != nullptr) job.progress->Fail();
      }
    }
  }
  for (State::Queue& queue : state_->queues) {
    queue.work.notify_all();
    queue.worker.join();
  }
}

void ThreadedTransfer::Submit(TransferJob job) {
  State::Queue& queue = state_->queues[job.queue()];
  {
    const std::lock_guard lock(state_->mutex);
    queue.jobs.push_back(std::move(job));
  }
  queue.work.notify_one();
}

std::optional<TransferCompletion> ThreadedTransfer::Poll() {
  const std::lock_guard lock(state_->mutex);
  if (state_->done.empty()) return std::nullopt;
  TransferCompletion completion = std::move(state_->done.front());
  state_->done.pop_front();
  return completion;
}

void ModeledTransfer::Submit(TransferJob job) {
  const std::size_t number = job.adapter == nullptr ? 2 : FromDisk(job) ? 0 : 1;
  const Link& link = links_[number];
  TimeNs& free_at = free_at_[number];
  const double bytes = static_cast<double>(job.to.pages.size() * job.page_bytes);
  const TimeNs begin = std::max(free_at, clock_->Now());
  free_at = begin + static_cast<TimeNs>(bytes / link.bytes_per_second * static_cast<double>(kNsPerSecond));
  TransferCompletion completion{job.id, fault_ ? fault_(job) : std::nullopt};
  moving_.push_back({begin + link.latency_ns, free_at + link.latency_ns, std::move(completion), std::move(job)});
}

TimeNs ModeledTransfer::Moving::ArrivalOf(std::int32_t layers) const {
  return begin + (end - begin) * layers / LayersOf(job);
}

// Publishes all layers but the last one, which comes with the completion.
void ModeledTransfer::PublishLayers(Moving& moving) const {
  const std::int32_t layers = LayersOf(moving.job);
  if (layers == 1) return;
  std::int32_t next = moving.job.progress->arrived();
  for (; next + 1 < layers && moving.ArrivalOf(next + 1) <= clock_->Now(); ++next) {
    if (Copies(moving.job)) CopyLayer(moving.job, memory_, next);
  }
  moving.job.progress->Publish(next);
}

std::optional<TransferCompletion> ModeledTransfer::Poll() {
  for (Moving& moving : moving_) PublishLayers(moving);
  const auto end_of = [](const Moving& moving) { return moving.cancelled() ? 0 : moving.end; };
  const auto earliest = std::min_element(moving_.begin(), moving_.end(),
                                         [&](const Moving& a, const Moving& b) { return end_of(a) < end_of(b); });
  if (earliest == moving_.end() || end_of(*earliest) > clock_->Now()) return std::nullopt;
  TransferCompletion completion = std::move(earliest->completion);
  if (earliest->cancelled()) completion = {earliest->job.id, std::nullopt, /*cancelled=*/true};
  const bool good = !completion.cancelled && !completion.error.has_value();
  if (good && Copies(earliest->job)) completion = RunTransfer(earliest->job, memory_);
  if (good && earliest->job.progress != nullptr) earliest->job.progress->Publish(earliest->job.progress->layers());
  if (!good) End(earliest->job, completion);
  moving_.erase(earliest);
  return completion;
}

TimeNs ModeledTransfer::next_end() const {
  TimeNs next = -1;
  for (const Moving& transfer : moving_) {
    TimeNs event = transfer.cancelled() ? std::min(transfer.end, clock_->Now()) : transfer.end;
    if (LayersOf(transfer.job) > 1 && transfer.job.progress->arrived() < transfer.job.progress->lead()) {
      event = std::min(event, transfer.ArrivalOf(transfer.job.progress->lead()));
    }
    if (next < 0 || event < next) next = event;
  }
  return next;
}

}  // namespace loramux
