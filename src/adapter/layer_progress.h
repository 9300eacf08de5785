// How far a transfer is, layer by layer, for those who use the first layers while later ones are on their way.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace loramux {

// Made with the job, shared by the transfer that publishes, the engine that plans with it, and the executor that waits.
// Thread-safe; what was written before Publish is seen after `arrived` or Wait told of it. That all layers have arrived
// says nothing of the transfer's end: its pages may be relied upon, freed and used by others only when its completion
// was polled without an error.
class LayerProgress {
 public:
  explicit LayerProgress(std::int32_t layers) : layers_(std::max(1, layers)) {}
  LayerProgress(const LayerProgress&) = delete;
  LayerProgress& operator=(const LayerProgress&) = delete;

  std::int32_t layers() const { return layers_; }
  // So many have to be there before a computation may begin with the first: schedule/arrival.h says why.
  std::int32_t lead() const { return (layers_ + 3) / 4; }
  // The first so many are there; 0 after a failure.
  std::int32_t arrived() const { return std::max(0, state_.load(std::memory_order_acquire)); }
  // The engine thread's: what is planned goes by what was there at one moment of the step, whatever arrives meanwhile.
  void Look() { seen_ = arrived(); }
  std::int32_t seen() const { return seen_; }  // as of the last Look
  bool failed() const { return state_.load(std::memory_order_acquire) == kFailed; }
  // Nothing more will come.
  bool ended() const { return failed() || arrived() == layers_; }

  // Blocks until layer `layer` is there; layers behind the last are there with it. False: it will never be. Ends in any
  // case, because every transfer does.
  bool Wait(std::int64_t layer) const {
    const auto last = static_cast<std::int32_t>(std::min<std::int64_t>(layer, layers_ - 1));
    for (std::int32_t state = state_.load(std::memory_order_acquire);; state = state_.load(std::memory_order_acquire)) {
      if (state == kFailed) return false;
      if (state > last) return true;
      awaited_.store(last, std::memory_order_relaxed);
      state_.wait(state, std::memory_order_acquire);
    }
  }

  // The last layer that somebody found missing; -1: none. Who waits for a layer has done with those before.
  std::int32_t awaited() const { return awaited_.load(std::memory_order_relaxed); }

  // By the transfer: the first `arrived` layers are there. REQUIRES: never less than before, and not after Fail.
  void Publish(std::int32_t arrived) {
    state_.store(std::min(arrived, layers_), std::memory_order_release);
    state_.notify_all();
  }
  // By the transfer, in place of further layers.
  void Fail() {
    state_.store(kFailed, std::memory_order_release);
    state_.notify_all();
  }

  // Nobody wants it any more: the transfer looks at this between layers, and then completes as cancelled.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::int32_t kFailed = -1;
  const std::int32_t layers_;
  std::atomic<std::int32_t> state_{0};  // layers that have arrived
  mutable std::atomic<std::int32_t> awaited_{-1};
  std::atomic<bool> cancelled_{false};
  std::int32_t seen_ = 0;
};

}  // namespace loramux
