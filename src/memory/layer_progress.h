// Progress of a transfer layer by layer, so that a computation can use the first layers while later ones arrive.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace loramux {

// A queue of work on a device. Only the device's own code defines it.
class DeviceStream;

// The arrival of layers as a device sees it, such as one event for each layer. For transfers that a device's copy
// engine carries out: the device waits for its own copies, and no thread of the host does.
class LayerEvents {
 public:
  virtual ~LayerEvents() = default;
  // Makes work that is enqueued on `stream` from now on wait for layer `layer`; a layer beyond the last arrives with
  // the last. Does not block. If the transfer fails, the work runs all the same, on arbitrary content.
  virtual void EnqueueWait(DeviceStream& stream, std::int64_t layer) const = 0;
  // A word that kernels read as they run: how many layers have arrived, from the first (gpu::PublishLayersArguments).
  // Stays as long as this object. Null: the transfer keeps none.
  virtual const std::uint32_t* ArrivedWord() const { return nullptr; }
};

// Created with the job and shared by the transfer, which publishes layers, the engine, which plans with them, and the
// executor, which waits for them. The counts are for planning. To wait, a thread of the host calls Wait, and an
// executor on a device asks `events`. Thread-safe. Data written before Publish is visible after `arrived` or Wait
// reported the layer.
//
// The arrival of all layers does not mean that the transfer has ended. Its pages may be relied on, freed or used
// otherwise only after its completion was polled without an error.
class LayerProgress {
 public:
  // Progress over `layers` layers; at least one.
  explicit LayerProgress(std::int32_t layers) : layers_(std::max(1, layers)) {}
  LayerProgress(const LayerProgress&) = delete;
  LayerProgress& operator=(const LayerProgress&) = delete;

  std::int32_t layers() const { return layers_; }
  // Layers that must have arrived before a computation may begin: a quarter of them, rounded up (see
  // schedule/plan/arrival.h).
  std::int32_t lead() const { return (layers_ + 3) / 4; }
  // The number of layers that have arrived, from the first; 0 after a failure.
  std::int32_t arrived() const { return std::max(0, state_.load(std::memory_order_acquire)); }
  // Stores the progress for the plan of one step, which must not depend on what arrives meanwhile. Engine thread only.
  void Look() { seen_ = arrived(); }
  std::int32_t seen() const { return seen_; }  // as of the last Look
  // Whether the transfer failed or was cancelled.
  bool failed() const { return state_.load(std::memory_order_acquire) == kFailed; }
  // Whether no more layers will arrive.
  bool ended() const { return failed() || arrived() == layers_; }

  // Blocks until layer `layer` has arrived; a layer beyond the last arrives with the last. Returns false if it will
  // never arrive. Always returns, because every transfer ends.
  bool Wait(std::int64_t layer) const {
    const auto last = static_cast<std::int32_t>(std::min<std::int64_t>(layer, layers_ - 1));
    for (std::int32_t state = state_.load(std::memory_order_acquire);; state = state_.load(std::memory_order_acquire)) {
      if (state == kFailed) return false;
      if (state > last) return true;
      awaited_.store(last, std::memory_order_relaxed);
      state_.wait(state, std::memory_order_acquire);
    }
  }

  // For the transfer, in PageTransfer::Submit: the device's way to wait.
  void AttachEvents(std::unique_ptr<const LayerEvents> events) { events_ = std::move(events); }
  // Null: the layers are copied by the host, and only Wait tells of them. Constant once the transfer is submitted.
  const LayerEvents* events() const { return events_.get(); }

  // The last layer that Wait found missing; -1 if there was none. A waiting computation has finished all earlier
  // layers.
  std::int32_t awaited() const { return awaited_.load(std::memory_order_relaxed); }

  // For the transfer: the first `arrived` layers have arrived. REQUIRES: `arrived` never decreases; not called after
  // Fail.
  void Publish(std::int32_t arrived) {
    state_.store(std::min(arrived, layers_), std::memory_order_release);
    state_.notify_all();
  }
  // For the transfer: no further layers will arrive.
  void Fail() {
    state_.store(kFailed, std::memory_order_release);
    state_.notify_all();
  }

  // Asks the transfer to stop. It checks this between layers and then completes as cancelled.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  // Whether Cancel was called.
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::int32_t kFailed = -1;
  const std::int32_t layers_;
  std::atomic<std::int32_t> state_{0};  // layers that have arrived, or kFailed
  mutable std::atomic<std::int32_t> awaited_{-1};
  std::atomic<bool> cancelled_{false};
  std::int32_t seen_ = 0;
  std::unique_ptr<const LayerEvents> events_;
};

}  // namespace loramux
