// The processor's part of steps with adapters that are not on the device yet: worker threads that compute B (A x) from
// the adapter's rows in host memory, layer by layer, while the device computes everything else.
//
// A step, all on the executor's thread:
//   pool.Begin();
//   pool.AddSegment(...) for each assisted segment, in the order of rows; its gate goes into the segment's LoRA items
//   pool.AddLogitRows(...) for each block of logits and segment whose adapter changes lm_head
//   pool.Upload(stream);
//   for each layer:   pool.BeginLayer(stream, layer);
//                     for each group of linear layers that share x:
//                       pool.Send(stream, group, layer, x, x_stride);     as soon as x is there
//                       ... the base's product of y ...
//                       pool.Add(stream, group, layer, y);                before what reads y
//   pool.BeginHead(stream); for each block: pool.SendHead(...), the product, pool.AddHead(...)
//   ... the step's work is done (event or Synchronize) ...
//   pool.End(failures);
// Nothing of it waits for the device. Begin waits for workers that are about to leave the last step. Launches do
// nothing where no segment of the step needs them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "assist/assist_layout.h"
#include "base/clock.h"
#include "base/result.h"
#include "formats/adapter_config.h"
#include "gpu/device.h"
#include "gpu/kernels/assist.h"
#include "kernels/lora.h"
#include "memory/layer_progress.h"

namespace loramux {

struct AssistOptions {
  AssistLayout layout;                // `fused` is set by Create: whether the device fuses
  int workers = 1;                    // threads, beside the caller's
  std::int32_t slots = 16;            // pieces of a step at most
  TimeNs timeout = 5 * kNsPerSecond;  // until an answer counts as lost
  // Called by a worker before it computes an answer; may block. For tests of lost and late workers. Null: nothing.
  std::function<void(int worker, std::uint32_t group)> before_answer;
};

// Adjacent rows of the batch whose adapter the processor may compute.
struct AssistedSegment {
  std::int32_t first_row = 0, rows = 0;
  // The adapter's rows in host memory, as LoraView::modules, and what owns them: a worker that is late keeps it.
  std::span<const LoraWeights> modules;
  std::shared_ptr<const void> owner;
  // Layers of the copy in host memory that are still arriving; null: it is whole. A worker waits for them.
  std::shared_ptr<const LayerProgress> host;
  // On the device, see gpu::AssistSegment.
  const std::uint32_t* arrived = nullptr;
  // Workers that share the segment, a piece each or more (CaraServe's L/c), while the pool has idle ones.
  int workers = 1;
};

// Rows whose answers failed to come. Their sequences' part of the step is garbage.
struct AssistFailure {
  std::int32_t segment = 0;              // index, in the order of AddSegment
  std::int32_t first_row = 0, rows = 0;  // rows of the batch
};

// What the workers did since Create.
struct AssistCounts {
  std::int64_t answers = 0;  // pieces that were answered: one for each group
  std::int64_t answered_rows = 0;
  std::int64_t failures = 0;  // pieces whose answer failed to come
  std::int64_t busy_ns = 0;   // time that workers computed, all together
};

// Output of one linear layer of a group.
struct AssistOutput {
  LoraTarget target = LoraTarget::kQ;
  float* y = nullptr;  // on the device: [rows, out]
  std::int64_t y_stride = 0;
};

// The slots and the workers. Not thread-safe: the executor's thread calls it; counts() is thread-safe.
class AssistPool {
 public:
  // Takes slots of pinned memory (AssistLayout::SlotBytes each) and starts the workers. Error (kResourceExhausted): no
  // memory.
  static Result<std::unique_ptr<AssistPool>> Create(Device& device, const AssistOptions& options);
  // Waits for workers that are late. REQUIRES: no step is open.
  ~AssistPool();
  AssistPool(const AssistPool&) = delete;
  AssistPool& operator=(const AssistPool&) = delete;

  // Opens a step. Slots whose worker has not come back are left out.
  void Begin();
  // Rows that AddSegment still has room for in this step, for one segment.
  std::int32_t RoomForRows() const;
  // Adds a segment to the step and returns its gate, in device memory: gpu::kAssistOnHost or kAssistOnDevice while a
  // layer is computed. Null: no room, or no worker is left; the segment is then not in the step. Valid until End.
  const std::uint32_t* AddSegment(const AssistedSegment& segment);
  // Rows [first_row, first_row + rows) of logits block `block` belong to segment `segment`; not more than its rows.
  // Blocks ascend.
  void AddLogitRows(std::int32_t segment, std::int32_t block, std::int32_t first_row, std::int32_t rows);
  // Whether the step has segments.
  bool active() const;
  // Enqueues the copy of what the launches read, and wakes the workers. Error (kResourceExhausted): no memory for so
  // many blocks of logits; no launch may follow, but End. REQUIRES: the last step's work has ended.
  Status Upload(DeviceStream& stream);

  // The launches.
  void BeginLayer(DeviceStream& stream, std::int64_t layer);
  void Send(DeviceStream& stream, AssistGroup group, std::int64_t layer, const void* x, std::int64_t x_stride);
  // `outputs`: of the group, in the order of targets; all of them, or those that some adapter changes.
  void Add(DeviceStream& stream, AssistGroup group, std::int64_t layer, std::span<const AssistOutput> outputs);
  void BeginHead(DeviceStream& stream);
  void SendHead(DeviceStream& stream, std::int32_t block, const void* x, std::int64_t x_stride);
  void AddHead(DeviceStream& stream, std::int32_t block, float* y, std::int64_t y_stride);

  // Closes the step and appends what failed. REQUIRES: the step's work has ended, or the device is lost.
  void End(std::vector<AssistFailure>& failures);

  AssistCounts counts() const;

 private:
  struct State;
  explicit AssistPool(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace loramux
