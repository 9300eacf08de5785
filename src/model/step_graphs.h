// Recorded steps: the launches of a step that only decodes, enqueued again as a whole for later steps of the same
// shape.
#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "base/result.h"
#include "formats/dtype.h"
#include "gpu/device.h"
#include "model/device_lora.h"
#include "model/device_results.h"
#include "model/model.h"
#include "model/step_room.h"
#include "model/step_rows.h"
#include "model/step_upload.h"
#include "model/step_ways.h"
#include "tensor/kv_layout.h"
#include "tensor/page_arena.h"

namespace loramux {

// All that the launches of a step of single rows depend on beside the model, the workspace and the stream. Which
// adapters, contexts and sampling parameters the rows have does not matter, nor do ranks but for the power of two.
struct GraphShape {
  std::int64_t rows = 0, logit_rows = 0;  // StepRoom::rows, StepRoom::logit_rows
  std::int64_t chunks = 0;                // chunks of attention
  std::int32_t max_rank = 0;              // StepRoom::max_rank
  SampleRoom samples;
  // Where keys and values are.
  const std::byte* pages = nullptr;
  std::size_t page_stride = 0;
  std::int64_t page_tokens = 0;
  DType kv_dtype = DType::kF32;

  auto operator<=>(const GraphShape&) const = default;
};

// The graphs of one stream's steps, the latest used first. Not thread-safe, but for ways(). The stream outlives it, and
// it must not outlive the device.
class StepGraphs {
 public:
  // A graph of a large model has some hundred nodes, about a megabyte of device memory.
  static constexpr std::size_t kMaxGraphs = 48;

  // What the launches of the batch cover; null if it is not a batch of few single rows that only decodes, or if an
  // adapter brings rows of its own. Notes the adapters' targets. Valid until the next call. REQUIRES: adapters of one
  // model.
  StepRoom* RoomOf(const StepRows<DeviceLoraView>& batch);

  // Enqueues `enqueue`'s work, which is the same at each call with the shape and `generation`
  // (DeviceWorkspace::generation). Launch by launch the first time, because a device chooses algorithms and takes
  // memory when it sees a shape first. `waits`: the work waits for events, which cannot be recorded. Error: the device
  // is lost. REQUIRES: earlier work is done.
  Status Run(DeviceStream& stream, const GraphShape& shape, std::uint64_t generation, bool waits,
             const std::function<void()>& enqueue);
  // As Run, for a step that is never recorded.
  void RunEagerly(const std::function<void()>& enqueue);

  // Thread-safe.
  StepWays ways() const { return {eager_, recorded_, replayed_}; }
  // Graphs that are kept.
  std::size_t size() const;

 private:
  // A shape that was seen. Without a graph: once.
  struct Entry {
    GraphShape shape;
    std::unique_ptr<DeviceGraph> graph;
  };

  void NoteTargets(const DeviceLoraView& adapter);

  std::list<Entry> entries_;
  std::uint64_t generation_ = 0;       // generation of the workspace that the graphs refer to
  std::vector<LayerTargets> targets_;  // as DeviceLoraView::targets, of all adapters that were seen
  StepRoom room_;
  std::atomic<std::int64_t> eager_{0}, recorded_{0}, replayed_{0};
};

// Whether some layer of an arrival is still to come, so that the work must wait for it.
bool AwaitsArrivals(const StepBatch& step);

}  // namespace loramux
