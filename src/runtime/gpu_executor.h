// Runs batches on a device: one thread drives the forward pass, and a stream of the device computes it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "base/result.h"
#include "engine/executor.h"
#include "gpu/device.h"
#include "memory/page_pool.h"
#include "model/device_model.h"
#include "model/step_ways.h"

namespace loramux {

// The Executor of a device: computes each step on one stream, one after another. A step that fails gives its error; the
// device's loss is kUnavailable.
class GpuExecutor final : public Executor {
 public:
  // Owns none of the arguments; all must outlive the executor. `model` is on `device` and has its workspace reserved.
  // `layout` describes the pages of `pages`, which lie in device memory. `max_copies`: pages that one launch copies.
  // Calls `on_completion` on the executor's thread after each batch. Errors: no stream or no memory.
  static Result<std::unique_ptr<GpuExecutor>> Create(Device& device, DeviceModel& model, const KvLayout& layout,
                                                     const PagePool& pages, std::size_t max_copies,
                                                     std::function<void()> on_completion);
  ~GpuExecutor() override;
  void Submit(StepBatch batch) override;
  bool Poll(StepResult& result) override;
  // How the steps so far were enqueued. Thread-safe.
  StepWays ways() const;

 private:
  struct State;
  explicit GpuExecutor(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace loramux
