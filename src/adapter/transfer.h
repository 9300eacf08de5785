// Moves adapters, and pages of keys and values, between the tiers, off the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "adapter/layer_progress.h"
#include "adapter/registry.h"
#include "base/clock.h"
#include "base/result.h"

namespace loramux {

enum class TransferKind { kDiskToHost, kHostToDevice, kDiskToDevice, kDeviceToHost };

// One move of one adapter's pages, or (without an adapter) of keys and values between host and device. The pages belong
// to the transfer until its completion was polled.
//
// A job from the host to the device with a `progress` of several layers moves layer by layer and publishes each. What
// comes from the disk never does: only at its end is it known to be what the adapter's digest says, so nobody may use
// it before. It is published as a whole, and its `progress` serves cancellation alone.
struct TransferJob {
  std::uint64_t id = 0;
  TransferKind kind = TransferKind::kDiskToHost;
  std::shared_ptr<const AdapterVersion> adapter;
  std::vector<std::byte*> source;       // host or device pages; none for what comes from disk
  std::vector<std::byte*> destination;  // host or device pages
  std::size_t page_bytes = 0;
  std::shared_ptr<LayerProgress> progress;  // null: nobody looks before the end, nobody cancels
  // Of keys and values: bytes of a layer in each page, layer after layer from its beginning; what is behind the last
  // one goes with it. 0: pages move whole. (An adapter's layers: AdapterLayout::layer_pages.)
  std::size_t layer_bytes = 0;
};

struct TransferCompletion {
  std::uint64_t id = 0;
  std::optional<Error> error;
  bool cancelled = false;  // as LayerProgress::Cancel asked: no error, but the destination's content is undefined
};

// A seam: real threads here, a model of a host link in the simulator, faults in tests.
// Submit and Poll are called by the engine thread only.
class AdapterTransfer {
 public:
  virtual ~AdapterTransfer() = default;
  virtual void Submit(TransferJob job) = 0;
  // The next completion, in any order; nullopt if none is there now.
  virtual std::optional<TransferCompletion> Poll() = 0;
};

// What it moves, in bytes: an adapter does not fill its last page.
std::int64_t PayloadBytes(const TransferJob& job);
// In so many parts it moves: the layers of its progress, or one.
std::int32_t LayersOf(const TransferJob& job);
// Copies what layer `layer` < LayersOf(job) adds to those before. Returns the bytes. REQUIRES: not from the disk.
std::size_t CopyLayer(const TransferJob& job, std::int32_t layer);

// Runs the job on the calling thread, layer by layer; `after_layer`, if given, is called after each with the bytes that
// it took. What ThreadedTransfer's worker does with each.
TransferCompletion RunTransfer(const TransferJob& job, const std::function<void(std::size_t)>& after_layer = {});

struct ThreadedTransferOptions {
  double bytes_per_second = 0;  // not faster than that, for measurements of slower links; 0: as fast as memory is
};

// One worker thread; jobs run in order of submission. `on_completion` is called on the worker after each job, and when
// one has its lead (LayerProgress::lead): the engine has something to do then.
class ThreadedTransfer final : public AdapterTransfer {
 public:
  explicit ThreadedTransfer(std::function<void()> on_completion, ThreadedTransferOptions options = {});
  // Cancels the job at hand and drops the rest.
  ~ThreadedTransfer() override;
  void Submit(TransferJob job) override;
  std::optional<TransferCompletion> Poll() override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Runs each job at once, inside Submit: deterministic, for one-shot generation and for tests on a virtual clock.
class InlineTransfer final : public AdapterTransfer {
 public:
  void Submit(TransferJob job) override;
  std::optional<TransferCompletion> Poll() override;

 private:
  std::vector<TransferCompletion> done_;
};

// Moves no adapters (keys and values it does, for the tests that look at them), takes time: one link a kind with a
// fixed latency and bandwidth, shared in order of submission. For the simulator, and for tests of what happens while
// loads are in flight (and when they fail). Layers arrive evenly over a job's time on the link, and are published by
// Poll, so that what the engine sees is a function of the clock.
class ModeledTransfer final : public AdapterTransfer {
 public:
  struct Link {
    TimeNs latency_ns = 100 * kNsPerUs;
    double bytes_per_second = 10e9;
  };
  ModeledTransfer(const Clock* clock, Link disk, Link host) : clock_(clock), disk_(disk), host_(host) {}
  void Submit(TransferJob job) override;
  std::optional<TransferCompletion> Poll() override;
  // When the next transfer ends, or has its lead; -1 if none is under way.
  TimeNs next_end() const;
  // Every job for which this returns an error fails with it, at its end.
  void set_fault(std::function<std::optional<Error>(const TransferJob&)> fault) { fault_ = std::move(fault); }

 private:
  struct Moving {
    TimeNs begin = 0, end = 0;  // of the data's arrival
    TransferCompletion completion;
    TransferJob job;
    TimeNs ArrivalOf(std::int32_t layers) const;  // of the first so many
    bool cancelled() const { return job.progress != nullptr && job.progress->cancelled(); }
  };
  void PublishLayers(Moving& moving) const;
  const Clock* clock_;
  const Link disk_, host_;
  TimeNs disk_free_at_ = 0, host_free_at_ = 0;
  std::vector<Moving> moving_;
  std::function<std::optional<Error>(const TransferJob&)> fault_;
};

}  // namespace loramux
