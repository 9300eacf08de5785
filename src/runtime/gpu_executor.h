// Runs batches on a device: one thread drives the forward pass, and a stream of the device computes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/result.h"
#include "engine/executor.h"
#include "gpu/device.h"
#include "memory/page_pool.h"
#include "model/device_model.h"
#include "model/step_ways.h"
#include "runtime/assist_setup.h"

namespace loramux {

// Options of GpuExecutor.
struct GpuExecutorOptions {
  std::size_t max_copies = 1;         // pages that one launch copies
  std::int64_t max_batch_tokens = 0;  // most tokens of a step that has adapters in the host tier
  AssistSetup assist;
};

// The Executor of a device: computes each step on one stream, one after another. A step that fails gives its error; the
// device's loss is kUnavailable.
//
// An adapter of AdapterSegment::in_host must have its pages on the device already, where it arrives. Its segment is cut
// into pieces with slots in pinned memory. As many slots are there as kAssistBytes hold, at most those of the largest
// step. A segment that finds no slots, or no worker, waits for the load in this step, as it would without the
// processor.
class GpuExecutor final : public Executor {
 public:
  // Owns none of the arguments; all must outlive the executor. `model` is on `device` and has its workspace reserved.
  // `layout` describes the pages of `pages`, which lie in device memory. `host`: the memory of the host tier, from
  // which adapters are computed meanwhile (AdapterSegment::in_host). Calls `on_completion` on the executor's thread
  // after each batch. Errors: no stream or no memory.
  static Result<std::unique_ptr<GpuExecutor>> Create(Device& device, DeviceModel& model, const KvLayout& layout,
                                                     const PagePool& pages, const PageArena& host,
                                                     const GpuExecutorOptions& options,
                                                     std::function<void()> on_completion);
  // Most pinned memory of the slots, but there is at least one.
  static constexpr std::int64_t kAssistBytes = std::int64_t{256} << 20;
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
