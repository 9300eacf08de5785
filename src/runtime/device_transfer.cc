#include "runtime/device_transfer.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "gpu/kernels/assist.h"
#include "memory/arena.h"
#include "runtime/arrived_words.h"

namespace loramux {
namespace {

// How often the watching thread asks for events. A job takes longer than this to set up, and asking costs about 1 us.
constexpr std::chrono::microseconds kWatchInterval{50};

bool IsCancelled(const TransferJob& job) { return job.progress != nullptr && job.progress->cancelled(); }

void Fail(const TransferJob& job) {
  if (job.progress != nullptr) job.progress->Fail();
}

// The events of a job: events[i] is done once all layers before ends[i] are there.
struct JobEvents {
  std::vector<std::unique_ptr<DeviceEvent>> events;
  std::vector<std::int32_t> ends;  // ascending
  std::shared_ptr<ArrivedWords> words;
  std::uint32_t* arrived = nullptr;  // word in `words`; null: there is none

  // The transfer and the progress hold it, so the job has ended, and no step asks for its layers any more.
  ~JobEvents() {
    if (arrived != nullptr) words->Give(arrived);
  }
};

class JobLayerEvents final : public LayerEvents {
 public:
  explicit JobLayerEvents(std::shared_ptr<const JobEvents> events) : events_(std::move(events)) {}
  void EnqueueWait(DeviceStream& stream, std::int64_t layer) const override {
    const auto found = std::upper_bound(events_->ends.begin(), events_->ends.end(), layer);
    const auto group =
        std::min<std::ptrdiff_t>(found - events_->ends.begin(), static_cast<std::ptrdiff_t>(events_->ends.size()) - 1);
    stream.Wait(*events_->events[static_cast<std::size_t>(group)]);
  }
  const std::uint32_t* ArrivedWord() const override { return events_->arrived; }

 private:
  const std::shared_ptr<const JobEvents> events_;
};

// Calls copy(i, count) for the runs of pages i ... i + count - 1 that lie one after another in both tiers, if `whole`
// pages are copied, and for each page otherwise.
template <typename Copy>
void ForRuns(const std::vector<std::uint32_t>& from, const std::vector<std::uint32_t>& to, std::size_t first,
             std::size_t end, bool whole, const Copy& copy) {
  for (std::size_t i = first; i < end;) {
    std::size_t count = 1;
    while (whole && i + count < end && from[i + count] == from[i] + count && to[i + count] == to[i] + count) ++count;
    copy(i, count);
    i += count;
  }
}

}  // namespace

// ---------------------------------------------------------------- Host and device

class DeviceTransfer::Copies {
 public:
  Copies(Device& device, const TierMemory& memory, std::function<void()> on_completion,
         const DeviceTransferOptions& options, std::unique_ptr<DeviceStream> up, std::unique_ptr<DeviceStream> down)
      : device_(device),
        memory_(memory),
        on_completion_(std::move(on_completion)),
        max_copies_(options.max_copies),
        words_(options.arrived_words ? std::make_shared<ArrivedWords>(device) : nullptr),
        up_(std::move(up)),
        down_(std::move(down)),
        watcher_([this] { Watch(); }) {}

  ~Copies() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    watcher_.join();
    // Pages may be used otherwise once this object is gone. An error says that no copy runs any more.
    for (DeviceStream* stream : {up_.get(), down_.get()}) static_cast<void>(stream->Synchronize());
    for (const Copying& copying : copying_) Fail(copying.job);
  }

  void Submit(TransferJob job) {
    Copying copying{std::move(job), std::make_shared<JobEvents>()};
    Enqueue(copying.job, *copying.events);
    const TransferJob& moving = copying.job;
    if (moving.progress != nullptr && moving.kind() == TransferKind::kHostToDevice) {
      moving.progress->AttachEvents(std::make_unique<JobLayerEvents>(copying.events));
    }
    {
      const std::lock_guard lock(mutex_);
      copying_.push_back(std::move(copying));
    }
    changed_.notify_all();
  }

  std::optional<TransferCompletion> Poll() {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < copying_.size(); ++i) {
      Copying& copying = copying_[i];
      const Status arrived = Look(copying);
      if (arrived.ok() && copying.arrived < copying.events->events.size()) {
        Publish(copying);
        continue;
      }
      TransferCompletion completion{copying.job.id, std::nullopt};
      if (!arrived.ok()) {
        completion.error = arrived.error();
        Fail(copying.job);
      } else if (IsCancelled(copying.job)) {
        completion.cancelled = true;
        Fail(copying.job);
      } else {
        Publish(copying);
      }
      copying_.erase(copying_.begin() + static_cast<std::ptrdiff_t>(i));
      return completion;
    }
    return std::nullopt;
  }

 private:
  struct Copying {
    TransferJob job;
    std::shared_ptr<JobEvents> events;
    std::size_t arrived = 0;                   // events that are done
    bool told_lead = false, told_end = false;  // to the engine
  };

  // The number of layers that share an event.
  std::int32_t LayersAtOnce(const TransferJob& job) const {
    const std::int32_t layers = LayersOf(job);
    if (job.adapter != nullptr) return 1;  // each page moves once, with whatever layer
    const std::size_t groups = std::max<std::size_t>(1, max_copies_ / std::max<std::size_t>(1, job.to.pages.size()));
    return (layers + static_cast<std::int32_t>(std::min<std::size_t>(groups, static_cast<std::size_t>(layers))) - 1) /
           static_cast<std::int32_t>(std::min<std::size_t>(groups, static_cast<std::size_t>(layers)));
  }

  void Enqueue(const TransferJob& job, JobEvents& events) {
    const bool to_device = job.kind() == TransferKind::kHostToDevice;
    DeviceStream& stream = to_device ? *up_ : *down_;
    const std::int32_t layers = LayersOf(job), step = LayersAtOnce(job);
    if (words_ != nullptr && to_device && job.adapter != nullptr && job.progress != nullptr) {
      events.words = words_;
      events.arrived = words_->Take();
    }
    for (std::int32_t layer = 0; layer < layers; layer += step) {
      const std::int32_t end = std::min(layers, layer + step);
      EnqueueLayers(job, layer, end, to_device, stream);
      events.ends.push_back(layers == 1 && job.progress != nullptr ? job.progress->layers() : end);
      // Before the event, so that the word is not written once the job has ended.
      if (events.arrived != nullptr)
        gpu::PublishLayers(stream, {events.arrived, static_cast<std::uint32_t>(events.ends.back())});
      events.events.push_back(device_.CreateEvent());
      stream.Record(*events.events.back());
    }
  }

  void EnqueueLayers(const TransferJob& job, std::int32_t first, std::int32_t end, bool to_device,
                     DeviceStream& stream) const {
    const PageArena &from = memory_.Of(job.from.tier), &to = memory_.Of(job.to.tier);
    const PagePart part = PartOfLayers(job, first, end);
    const bool whole = part.bytes == from.page_stride && part.bytes == to.page_stride;
    ForRuns(job.from.pages, job.to.pages, part.first, part.end, whole, [&](std::size_t i, std::size_t count) {
      const std::byte* const source = from.Page(job.from.pages[i]) + part.offset;
      std::byte* const destination = to.Page(job.to.pages[i]) + part.offset;
      if (to_device)
        stream.CopyToDevice(destination, source, count * part.bytes);
      else
        stream.CopyToHost(destination, source, count * part.bytes);
    });
  }

  // Counts the events that are done.
  Status Look(Copying& copying) const {
    while (copying.arrived < copying.events->events.size()) {
      ASSIGN_OR_RETURN(const bool done, device_.IsDone(*copying.events->events[copying.arrived]));
      if (!done) break;
      ++copying.arrived;
    }
    return Ok{};
  }

  static std::int32_t LayersThere(const Copying& copying) {
    return copying.arrived == 0 ? 0 : copying.events->ends[copying.arrived - 1];
  }
  static void Publish(const Copying& copying) {
    if (copying.job.progress == nullptr || copying.arrived == 0 || IsCancelled(copying.job)) return;
    copying.job.progress->Publish(LayersThere(copying));
  }

  void Watch() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !copying_.empty(); });
      if (stopping_) return;
      if (AnyNews()) {
        lock.unlock();
        on_completion_();
        lock.lock();
      }
      changed_.wait_for(lock, kWatchInterval, [this] { return stopping_; });
    }
  }

  // Whether there is something that the engine was not told of.
  bool AnyNews() {
    bool any = false;
    for (Copying& copying : copying_) {
      const bool ended = !Look(copying).ok() || copying.arrived == copying.events->events.size();
      const LayerProgress* const progress = copying.job.progress.get();
      const bool lead = progress != nullptr && LayersThere(copying) >= progress->lead();
      any |= ended && !std::exchange(copying.told_end, copying.told_end || ended);
      any |= lead && !std::exchange(copying.told_lead, copying.told_lead || lead);
    }
    return any;
  }

  Device& device_;
  const TierMemory memory_;
  const std::function<void()> on_completion_;
  const std::size_t max_copies_;
  const std::shared_ptr<ArrivedWords> words_;  // null: none are kept
  std::unique_ptr<DeviceStream> up_, down_;    // used by the thread that submits
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Copying> copying_;  // in order of submission
  bool stopping_ = false;
  std::thread watcher_;
};

// ---------------------------------------------------------------- From disk

class DeviceTransfer::Reader {
 public:
  Reader(const TierMemory& memory, std::function<void()> on_completion, std::unique_ptr<DeviceStream> stream,
         std::unique_ptr<Arena> staging)
      : memory_(memory),
        on_completion_(std::move(on_completion)),
        stream_(std::move(stream)),
        staging_(std::move(staging)),
        thread_([this] { Run(); }) {}

  ~Reader() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      if (at_hand_ != nullptr) at_hand_->Cancel();
      for (const TransferJob& job : jobs_) Fail(job);
    }
    changed_.notify_all();
    thread_.join();
  }

  void Submit(TransferJob job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_all();
  }

  std::optional<TransferCompletion> Poll() {
    const std::lock_guard lock(mutex_);
    if (done_.empty()) return std::nullopt;
    TransferCompletion completion = std::move(done_.front());
    done_.pop_front();
    return completion;
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      const TransferJob job = std::move(jobs_.front());
      jobs_.pop_front();
      at_hand_ = job.progress;
      lock.unlock();
      TransferCompletion completion = job.to.tier == Tier::kHost ? RunTransfer(job, memory_) : MoveToDevice(job);
      lock.lock();
      at_hand_ = nullptr;
      done_.push_back(std::move(completion));
      lock.unlock();
      on_completion_();
      lock.lock();
    }
  }

  TransferCompletion MoveToDevice(const TransferJob& job) {
    TransferCompletion completion{job.id, std::nullopt};
    const Status moved = ReadAndCopy(job);
    if (IsCancelled(job))
      completion.cancelled = true;
    else if (!moved.ok())
      completion.error = moved.error();
    if (completion.cancelled || completion.error.has_value())
      Fail(job);
    else if (job.progress != nullptr)
      job.progress->Publish(job.progress->layers());
    return completion;
  }

  // Its end is the end of the job whatever happens: no copy is left behind.
  Status ReadAndCopy(const TransferJob& job) {
    if (IsCancelled(job)) return Ok{};
    const std::size_t count = job.to.pages.size();
    ASSIGN_OR_RETURN(const std::unique_ptr<Arena> image,
                     MapHostArena("an adapter on its way", static_cast<std::int64_t>(count * job.page_bytes)));
    std::vector<std::byte*> pages;
    pages.reserve(count);
    for (std::size_t i = 0; i < count; ++i) pages.push_back(image->base() + i * job.page_bytes);
    RETURN_IF_ERROR(PackAdapter(job.adapter->file, job.adapter->layout, pages, job.page_bytes,
                                [&job] { return IsCancelled(job); }));
    const std::size_t at_once = static_cast<std::size_t>(staging_->size()) / job.page_bytes;
    for (std::size_t first = 0; first < count && !IsCancelled(job); first += at_once) {
      const std::size_t pages_now = std::min(at_once, count - first);
      std::memcpy(staging_->base(), pages[first], pages_now * job.page_bytes);
      for (std::size_t i = 0; i < pages_now; ++i) {
        stream_->CopyToDevice(memory_.device.Page(job.to.pages[first + i]), staging_->base() + i * job.page_bytes,
                              job.page_bytes);
      }
      RETURN_IF_ERROR(stream_->Synchronize());
    }
    return Ok{};
  }

  const TierMemory memory_;
  const std::function<void()> on_completion_;
  std::unique_ptr<DeviceStream> stream_;  // used by the thread alone
  std::unique_ptr<Arena> staging_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TransferJob> jobs_;
  std::deque<TransferCompletion> done_;
  std::shared_ptr<LayerProgress> at_hand_;  // progress of the running job; null: none runs
  bool stopping_ = false;
  std::thread thread_;
};

// ---------------------------------------------------------------- Both

DeviceTransfer::DeviceTransfer() = default;
DeviceTransfer::~DeviceTransfer() = default;

Result<std::unique_ptr<DeviceTransfer>> DeviceTransfer::Create(Device& device, const TierMemory& memory,
                                                               std::function<void()> on_completion,
                                                               DeviceTransferOptions options) {
  std::unique_ptr<DeviceTransfer> transfer(new DeviceTransfer);
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> up, device.CreateStream());
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> down, device.CreateStream());
  transfer->copies_ = std::make_unique<Copies>(device, memory, on_completion, options, std::move(up), std::move(down));
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device.CreateStream());
  const auto bytes = static_cast<std::int64_t>(std::max(options.staging_bytes, memory.device.page_stride));
  ASSIGN_OR_RETURN(std::unique_ptr<Arena> staging, device.AllocatePinned("staging of adapters", bytes));
  transfer->reader_ = std::make_unique<Reader>(memory, std::move(on_completion), std::move(stream), std::move(staging));
  return transfer;
}

void DeviceTransfer::Submit(TransferJob job) {
  if (job.from.tier != Tier::kDisk) return copies_->Submit(std::move(job));
  reader_->Submit(std::move(job));
}

std::optional<TransferCompletion> DeviceTransfer::Poll() {
  std::optional<TransferCompletion> completion = copies_->Poll();
  if (!completion.has_value()) completion = reader_->Poll();
  return completion;
}

}  // namespace loramux
