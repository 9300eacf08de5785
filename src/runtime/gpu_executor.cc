#include "runtime/gpu_executor.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "gpu/kernels/elementwise.h"
#include "model/device_lora.h"
#include "model/step_graphs.h"
#include "runtime/forward_of_step.h"
#include "runtime/step_thread.h"

namespace loramux {
namespace {

// An adapter's rows at their addresses on the device.
class RowAddresses {
 public:
  RowAddresses(const AdapterPlacement& placement, const PageArena& arena) : placement_(placement), arena_(arena) {
    std::size_t count = 0;
    for (const ModulePlace& module : layout().modules) count += 2 * static_cast<std::size_t>(module.rank);
    addresses_.reserve(count);  // the modules point into it, so it must not reallocate
    for (const ModulePlace& module : layout().modules) {
      modules_.push_back(
          {module.layer, module.target, module.scale, AddressesOf(module.a_rows), AddressesOf(module.b_rows)});
    }
  }

  const AdapterLayout& layout() const { return placement_.version->layout; }
  std::span<const DeviceLoraRows> modules() const { return modules_; }

 private:
  std::span<const std::byte* const> AddressesOf(const std::vector<RowPlace>& places) {
    const std::size_t first = addresses_.size();
    for (const RowPlace place : places)
      addresses_.push_back(arena_.Page(placement_.pages.pages[place.page]) + place.offset);
    return std::span(addresses_).subspan(first);
  }

  const AdapterPlacement& placement_;
  const PageArena& arena_;
  std::vector<const std::byte*> addresses_;
  std::vector<DeviceLoraRows> modules_;
};

}  // namespace

struct GpuExecutor::State {
  // What a slot holds. A placement waits until its table is written, which may take a second try.
  struct Slot {
    std::uint64_t load = 0;
    std::optional<AdapterPlacement> waiting;
  };
  // The indices of pages to copy, [max_copies][source, destination].
  struct Pairs {
    std::unique_ptr<Arena> host, device;
    std::size_t max_copies = 0;
  };

  Device& device;
  DeviceModel& model;
  const KvLayout layout;
  const PageArena arena;
  std::unique_ptr<DeviceStream> stream;
  StepGraphs graphs;
  Pairs pairs;
  DeviceLoraTables tables;
  std::vector<Slot> slots;
  std::vector<DeviceSequenceChunk> sequences;
  std::unique_ptr<StepThread> thread;  // last, because it uses the others

  State(Device& d, DeviceModel& m, const KvLayout& l, const PageArena& a, std::unique_ptr<DeviceStream> s, Pairs p,
        std::function<void()> on_completion)
      : device(d),
        model(m),
        layout(l),
        arena(a),
        stream(std::move(s)),
        pairs(std::move(p)),
        tables(d, m.config().num_layers) {
    thread = std::make_unique<StepThread>(
        [this](const StepBatch& batch, StepResult& result) { Execute(batch, result); }, std::move(on_completion));
  }

  void Execute(const StepBatch& batch, StepResult& result) {
    const Status done = TryExecute(batch, result);
    result.error.reset();
    if (done.ok()) return;
    result.error = done.error();
    // What was enqueued before the error may still use the batch.
    if (const Status ended = stream->Synchronize(); !ended.ok()) result.error = ended.error();
  }

  Status TryExecute(const StepBatch& batch, StepResult& result) {
    for (const AdapterPlacement& placement : batch.placements) Register(placement);
    RETURN_IF_ERROR(CopyPages(batch.copies));
    sequences.clear();
    for (const StepSequence& sequence : batch.sequences) {
      const DeviceLoraView* adapter = nullptr;
      if (const AdapterSegment* const segment = batch.SegmentOf(sequence)) {
        ASSIGN_OR_RETURN(adapter, ViewOf(segment->adapter));
      }
      sequences.push_back(ChunkOf(batch, sequence, adapter));
    }
    const std::int64_t replayed = graphs.ways().replayed;
    ASSIGN_OR_RETURN(result.waited,
                     model.Forward(*stream, sequences, layout, arena, ForwardOptionsOf(batch, result), &graphs));
    result.replayed = graphs.ways().replayed > replayed;
    return Ok{};
  }

  void Register(const AdapterPlacement& placement) {
    const std::size_t slot = placement.adapter.slot;
    if (slot >= slots.size()) slots.resize(slot + 1);
    slots[slot] = {placement.adapter.load, placement};
  }

  Result<const DeviceLoraView*> ViewOf(AdapterRef adapter) {
    Slot& slot = slots[adapter.slot];
    CHECK_EQ(slot.load, adapter.load);
    if (slot.waiting.has_value()) {
      const RowAddresses rows(*slot.waiting, arena);
      RETURN_IF_ERROR(tables.Place(*stream, adapter.slot, rows.layout().dtype, rows.modules()));
      slot.waiting.reset();
    }
    return &tables.View(adapter.slot);
  }

  Status CopyPages(std::span<const PageCopy> copies) {
    while (!copies.empty()) {
      const std::span<const PageCopy> now = copies.first(std::min(copies.size(), pairs.max_copies));
      copies = copies.subspan(now.size());
      auto* const host = reinterpret_cast<std::uint32_t*>(pairs.host->base());
      for (std::size_t i = 0; i < now.size(); ++i) {
        host[2 * i] = now[i].source;
        host[2 * i + 1] = now[i].destination;
      }
      stream->CopyToDevice(pairs.device->base(), host, now.size() * 2 * sizeof(std::uint32_t));
      gpu::CopyPages(*stream, static_cast<std::int64_t>(now.size()),
                     {.base = arena.base,
                      .page_stride = static_cast<std::int64_t>(arena.page_stride),
                      .page_bytes = static_cast<std::int64_t>(layout.PageBytes()),
                      .pairs = reinterpret_cast<const std::uint32_t*>(pairs.device->base())});
      if (!copies.empty()) RETURN_IF_ERROR(stream->Synchronize());  // before the pairs are overwritten
    }
    return Ok{};
  }
};

GpuExecutor::GpuExecutor(std::unique_ptr<State> state) : state_(std::move(state)) {}
GpuExecutor::~GpuExecutor() = default;

Result<std::unique_ptr<GpuExecutor>> GpuExecutor::Create(Device& device, DeviceModel& model, const KvLayout& layout,
                                                         const PagePool& pages, std::size_t max_copies,
                                                         std::function<void()> on_completion) {
  CHECK(max_copies > 0);
  CHECK(pages.memory_kind() == MemoryKind::kDevice);
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device.CreateStream());
  const auto bytes = static_cast<std::int64_t>(max_copies * 2 * sizeof(std::uint32_t));
  State::Pairs pairs{.max_copies = max_copies};
  ASSIGN_OR_RETURN(pairs.host, device.AllocatePinned("pages to copy", bytes));
  ASSIGN_OR_RETURN(pairs.device, device.Allocate("pages to copy", bytes));
  return std::unique_ptr<GpuExecutor>(new GpuExecutor(std::make_unique<State>(
      device, model, layout, pages.View(), std::move(stream), std::move(pairs), std::move(on_completion))));
}

void GpuExecutor::Submit(StepBatch batch) { state_->thread->Submit(std::move(batch)); }

StepWays GpuExecutor::ways() const { return state_->graphs.ways(); }

bool GpuExecutor::Poll(StepResult& result) { return state_->thread->Poll(result); }

}  // namespace loramux
