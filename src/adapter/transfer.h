// Moves adapters, and pages of keys and values, between the tiers, off the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "adapter/registry.h"
#include "base/clock.h"
#include "base/result.h"

namespace loramux {

enum class TransferKind { kDiskToHost, kHostToDevice, kDiskToDevice, kDeviceToHost };

// One move of one adapter's pages, or (without an adapter) of keys and values between host and device. The pages belong
// to the transfer until its completion was polled.
struct TransferJob {
  std::uint64_t id = 0;
  TransferKind kind = TransferKind::kDiskToHost;
  std::shared_ptr<const AdapterVersion> adapter;
  std::vector<std::byte*> source;        // host or device pages; none for what comes from disk
  std::vector<std::byte*> destination;   // host or device pages
  std::size_t page_bytes = 0;
};

struct TransferCompletion {
  std::uint64_t id = 0;
  std::optional<Error> error;
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

// Runs the job on the calling thread: what ThreadedTransfer's worker does with each.
Status RunTransfer(const TransferJob& job);

// One worker thread; jobs run in order of submission. `on_completion` is called on the worker after each.
class ThreadedTransfer final : public AdapterTransfer {
 public:
  explicit ThreadedTransfer(std::function<void()> on_completion);
  // Finishes the job at hand and drops the rest.
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

// Moves no adapters (keys and values it does, for the tests that look at them), takes time: one link a kind with a fixed
// latency and bandwidth, shared in order of submission. For the simulator, and for tests of what happens while loads are
// in flight (and when they fail).
class ModeledTransfer final : public AdapterTransfer {
 public:
  struct Link {
    TimeNs latency_ns = 100 * kNsPerUs;
    double bytes_per_second = 10e9;
  };
  ModeledTransfer(const Clock* clock, Link disk, Link host) : clock_(clock), disk_(disk), host_(host) {}
  void Submit(TransferJob job) override;
  std::optional<TransferCompletion> Poll() override;
  // When the next transfer ends; -1 if none is under way.
  TimeNs next_end() const;
  // Every job for which this returns an error fails with it, at its end.
  void set_fault(std::function<std::optional<Error>(const TransferJob&)> fault) { fault_ = std::move(fault); }

 private:
  struct Moving {
    TimeNs end = 0;
    TransferCompletion completion;
    TransferJob job;
  };
  const Clock* clock_;
  const Link disk_, host_;
  TimeNs disk_free_at_ = 0, host_free_at_ = 0;
  std::vector<Moving> moving_;
  std::function<std::optional<Error>(const TransferJob&)> fault_;
};

}  // namespace loramux
