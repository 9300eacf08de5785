// Transfers of adapters and of KV pages between the tiers, off the engine thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "adapter/registry.h"
#include "base/clock.h"
#include "base/result.h"
#include "memory/layer_progress.h"
#include "memory/tier.h"

namespace loramux {

// Source and destination of a transfer.
enum class TransferKind { kDiskToHost, kHostToDevice, kDiskToDevice, kDeviceToHost };

// The name of a transfer: of an adapter, its generation; of keys and values (history), a number with this bit. There is
// at most one transfer of a name in flight.
inline constexpr std::uint64_t kHistoryBit = std::uint64_t{1} << 63;
inline bool IsOfHistory(std::uint64_t transfer) { return (transfer & kHistoryBit) != 0; }

// One transfer of an adapter's pages, or (without an adapter) of KV pages between host and device. The pages belong to
// the transfer until its completion was polled. The job names pages and no addresses: a transfer knows the memory of
// the tiers that it serves (TierMemory, or what a device's copy engine has instead).
//
// A transfer from host to device whose `progress` has several layers moves layer by layer and publishes each. A
// transfer from disk does so with `by_layer`: each layer is published once what was read of it matches the adapter's
// digest so far. Otherwise it is published as a whole, and its `progress` serves cancellation alone.
struct TransferJob {
  std::uint64_t id = 0;
  PageSet from;  // kDisk: the adapter's own file; otherwise as many pages as `to`
  PageSet to;    // kHost or kDevice
  std::shared_ptr<const AdapterVersion> adapter;
  std::size_t page_bytes = 0;               // bytes of each page, in both tiers
  std::shared_ptr<LayerProgress> progress;  // null: no layers, no cancellation
  // KV pages: bytes of one layer in each page, layer after layer from the start; the rest of the page moves with the
  // last layer. 0: pages move whole. (For the layers of an adapter see AdapterLayout::layer_pages.)
  std::size_t layer_bytes = 0;
  bool by_layer = false;  // from disk: see above

  // REQUIRES: the tiers differ.
  TransferKind kind() const;
  // The queue of the job, below kTransferQueues. Jobs of one queue run in order of submission, beside those of others.
  std::size_t queue() const;
};
// From disk, to the device, and to the host: a read does not wait for copies, nor a copy for one in the other
// direction.
inline constexpr std::size_t kTransferQueues = 3;

// The end of one transfer.
struct TransferCompletion {
  std::uint64_t id = 0;
  std::optional<Error> error;
  bool cancelled = false;  // by LayerProgress::Cancel: no error, but the content of the destination is undefined
};

// Interface of transfers. Implementations: threads, a model of the links for the simulator, faults for tests. A
// device's copy engine enqueues the whole job in Submit, attaches the events of the layers to the job's progress
// (LayerProgress::AttachEvents) and publishes counts from Poll. The engine thread alone calls Submit and Poll.
class PageTransfer {
 public:
  virtual ~PageTransfer() = default;
  // Starts the job without waiting for it; the caller must not touch its pages until Poll returned its completion.
  virtual void Submit(TransferJob job) = 0;
  // Returns the next completion, in any order; nullopt if there is none yet.
  virtual std::optional<TransferCompletion> Poll() = 0;
};

// The payload of the job in bytes; an adapter does not fill its last page.
std::int64_t PayloadBytes(const TransferJob& job);
// The number of parts in which the job moves: the layers of its progress, or one.
std::int32_t LayersOf(const TransferJob& job);
// Bytes of some pages of a job: `bytes` from byte `offset` of each of its pages number `first` to `end` - 1.
struct PagePart {
  std::size_t first = 0, end = 0;
  std::size_t offset = 0, bytes = 0;
  std::size_t total() const { return (end - first) * bytes; }
};
// What the layers from `first` to `end` - 1 add to the earlier ones. REQUIRES: 0 <= first < end <= LayersOf(job); the
// job is not a transfer from disk.
PagePart PartOfLayers(const TransferJob& job, std::int32_t first, std::int32_t end);

// Copies the bytes that layer `layer` < LayersOf(job) adds to the earlier layers. Returns their number. REQUIRES: the
// job is not a transfer from disk; the processor can read both tiers.
std::size_t CopyLayer(const TransferJob& job, const TierMemory& memory, std::int32_t layer);

// Runs the job on the calling thread, layer by layer. REQUIRES: the processor can read the tiers of the job. Calls
// `after_layer`, if given, after each layer with the bytes copied and before publishing it. ThreadedTransfer's worker
// runs each job with it.
TransferCompletion RunTransfer(const TransferJob& job, const TierMemory& memory,
                               const std::function<void(std::size_t)>& after_layer = {});

// Options of ThreadedTransfer.
struct ThreadedTransferOptions {
  double bytes_per_second = 0;  // limit, to measure slower links; 0: as fast as memory
};

// A worker thread for each queue. The worker calls `on_completion` after each job, and also when a job has its lead
// (LayerProgress::lead), because the engine then has something to do.
class ThreadedTransfer final : public PageTransfer {
 public:
  // The processor can read all of `memory`, which outlives the transfer.
  ThreadedTransfer(std::function<void()> on_completion, const TierMemory& memory, ThreadedTransferOptions options = {});
  // Cancels the running jobs and drops the others.
  ~ThreadedTransfer() override;
  void Submit(TransferJob job) override;
  std::optional<TransferCompletion> Poll() override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A model of the links, for tests of loads in flight and of their failures. It moves no adapters, but it does copy KV
// pages for tests that look at them, if it is given the tiers' memory. There is one link for adapters from disk, one
// for adapters from the host tier and one for keys and values, each with a fixed latency and bandwidth, shared in order
// of submission. The layers of a job arrive evenly over its time on the link. Poll publishes them, so the engine's view
// is a function of the clock.
class ModeledTransfer final : public PageTransfer {
 public:
  // A link: the time of a job is latency + bytes / bandwidth.
  struct Link {
    TimeNs latency_ns = 100 * kNsPerUs;
    double bytes_per_second = 10e9;
  };
  // Does not own the clock. The link of keys and values is as fast as `host`.
  ModeledTransfer(const Clock* clock, Link disk, Link host) : ModeledTransfer(clock, disk, host, host) {}
  ModeledTransfer(const Clock* clock, Link disk, Link host, Link history, const TierMemory& memory = {})
      : clock_(clock), links_{disk, host, history}, memory_(memory) {}
  void Submit(TransferJob job) override;
  std::optional<TransferCompletion> Poll() override;
  // The time of the next event: the end of a transfer or the arrival of its lead. -1 if no transfer is in flight.
  TimeNs next_end() const;
  // Sets a function that decides at submission whether a job fails. A job for which it returns an error fails with it
  // at its end.
  void set_fault(std::function<std::optional<Error>(const TransferJob&)> fault) { fault_ = std::move(fault); }

 private:
  // A job in flight.
  struct Moving {
    TimeNs begin = 0, end = 0;  // when the data begins and ends to arrive
    TransferCompletion completion;
    TransferJob job;
    TimeNs ArrivalOf(std::int32_t layers) const;  // when the first `layers` layers have arrived
    bool cancelled() const { return job.progress != nullptr && job.progress->cancelled(); }
  };
  // Publishes the layers that have arrived by now.
  void PublishLayers(Moving& moving) const;
  bool Copies(const TransferJob& job) const { return job.adapter == nullptr && memory_.host.base != nullptr; }
  const Clock* clock_;
  const std::array<Link, 3> links_;
  const TierMemory memory_;
  std::array<TimeNs, 3> free_at_{};  // when each link is free
  std::vector<Moving> moving_;
  std::function<std::optional<Error>(const TransferJob&)> fault_;
};

}  // namespace loramux
