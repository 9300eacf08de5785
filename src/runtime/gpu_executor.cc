#include "runtime/gpu_executor.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "assist/assist_pool.h"
#include "base/bytes.h"
#include "base/ceil_divide.h"
#include "base/check.h"
#include "gpu/kernels/elementwise.h"
#include "model/device_lora.h"
#include "model/step_graphs.h"
#include "runtime/lora_view_builder.h"
#include "runtime/step_thread.h"

namespace loramux {
namespace {

// An adapter's rows at their addresses on the device.
class RowAddresses {
 public:
  RowAddresses(const AdapterPlacement& placement, const PageArena& arena) : placement_(placement), arena_(arena) {
    std::size_t count = 0;
    for (const ModulePlace& module : layout().modules) count += 2 * static_cast<std::size_t>(module.rank);
    for (const OwnPlace& own : layout().own) count += own.rows.size();
    addresses_.reserve(count);  // the modules point into it, so it must not reallocate
    for (const ModulePlace& module : layout().modules) {
      modules_.push_back({module.layer, module.target, module.expert, module.scale, AddressesOf(module.a_rows),
                          AddressesOf(module.b_rows)});
      modules_.back().in = module.in;
      if (module.factors) modules_.back().factors = AddressOf(*module.factors);
      if (module.vectors.empty()) continue;
      modules_.back().gains = AddressOf(module.vectors[0]);
      modules_.back().shifts = AddressOf(module.vectors[1]);
    }
    for (const OwnPlace& own : layout().own) own_.push_back({own.kind, own.layer, own.tokens, AddressesOf(own.rows)});
  }

  const AdapterLayout& layout() const { return placement_.version->layout; }
  std::span<const DeviceLoraRows> modules() const { return modules_; }
  std::span<const DeviceOwnRows> own() const { return own_; }

 private:
  std::span<const std::byte* const> AddressesOf(const std::vector<RowPlace>& places) {
    const std::size_t first = addresses_.size();
    for (const RowPlace place : places) addresses_.push_back(AddressOf(place));
    return std::span(addresses_).subspan(first);
  }
  const std::byte* AddressOf(RowPlace place) const {
    return arena_.Page(placement_.pages.pages[place.page]) + place.offset;
  }

  const AdapterPlacement& placement_;
  const PageArena& arena_;
  std::vector<const std::byte*> addresses_;
  std::vector<DeviceLoraRows> modules_;
  std::vector<DeviceOwnRows> own_;
};

AssistLayout LayoutOf(const DeviceModel& model) {
  AssistLayout layout;
  layout.layers = model.config().num_layers;
  layout.dtype = model.dtype();
  for (std::size_t i = 0; i < layout.shapes.size(); ++i)
    layout.shapes[i] = TargetShape(model.config(), static_cast<LoraTarget>(i));
  return layout;
}

// For each piece of the largest step, in a few segments of which some are cut finer, for all cores; or as many as fit
// GpuExecutor::kAssistBytes.
std::int32_t SlotsFor(const AssistLayout& layout, std::int64_t max_batch_tokens, int cores) {
  constexpr std::int64_t kFewSegments = 16;
  const std::int64_t pieces = CeilDivide(max_batch_tokens, std::int64_t{gpu::kAssistPieceRows}) + kFewSegments + cores;
  const std::int64_t most = std::max<std::int64_t>(1, GpuExecutor::kAssistBytes / layout.SlotBytes());
  return static_cast<std::int32_t>(std::min(pieces, most));
}

Result<std::unique_ptr<AssistPool>> MakeAssistPool(Device& device, const DeviceModel& model,
                                                   const GpuExecutorOptions& options) {
  AssistOptions pool;
  pool.layout = LayoutOf(model);
  pool.workers = options.assist.cores;
  pool.slots = SlotsFor(pool.layout, options.max_batch_tokens, pool.workers);
  pool.timeout = options.assist.timeout;
  pool.before_answer = options.assist.before_answer;
  auto made = AssistPool::Create(device, pool);
  if (made.ok()) return made;
  return ResourceExhausted(
      "--cold-start: " + std::to_string(pool.slots) + " slots of " + FormatBytes(pool.layout.SlotBytes()) +
          " of pinned memory for adapters that the processor computes do not fit (" + made.error().message +
          "); raise the limit of locked memory, lower --max-num-batched-tokens, or choose "
          "--cold-start wait",
      "--cold-start");
}

}  // namespace

struct GpuExecutor::State {
  // What a slot holds. A placement waits until its table is written, which may take a second try.
  struct Slot {
    std::uint64_t load = 0;
    std::optional<AdapterPlacement> waiting;
    // The copy in the host tier, if the load's first step computes from it. A late worker keeps it.
    std::shared_ptr<const LoraViewBuilder::Built> host;
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
  const LoraViewBuilder host_views;
  const std::int64_t rows_per_core, row_ranks_per_core;
  std::unique_ptr<AssistPool> assist;  // null: the device waits
  // Of the step: the adapters of its segments, what failed in the pool, and segments that neither side can compute.
  std::vector<const DeviceLoraView*> adapters;
  std::vector<const AdapterSegment*> awaited;  // in the host tier, but the pool has no room
  std::vector<AssistFailure> failed;
  std::unique_ptr<StepThread> thread;  // last, because it uses the others

  State(Device& d, DeviceModel& m, const KvLayout& l, const PageArena& a, const PageArena& host,
        const GpuExecutorOptions& options, std::unique_ptr<DeviceStream> s, Pairs p, std::unique_ptr<AssistPool> pool,
        std::function<void()> on_completion)
      : device(d),
        model(m),
        layout(l),
        arena(a),
        stream(std::move(s)),
        pairs(std::move(p)),
        tables(d, m.config()),
        host_views(host, m.config().num_layers),
        rows_per_core(std::max<std::int64_t>(1, options.assist.rows_per_core)),
        row_ranks_per_core(options.assist.row_ranks_per_core),
        assist(std::move(pool)) {
    thread = std::make_unique<StepThread>([this](StepBatch& batch, StepResult& result) { Execute(batch, result); },
                                          std::move(on_completion));
  }

  std::int64_t RowsPerCore(std::int32_t rank) const {
    return row_ranks_per_core > 0 ? std::max<std::int64_t>(1, row_ranks_per_core / std::max(1, rank)) : rows_per_core;
  }

  void Execute(StepBatch& batch, StepResult& result) {
    result.failures.clear();
    failed.clear();
    if (assist != nullptr) assist->Begin();
    const Status done = TryExecute(batch, result);
    result.error.reset();
    if (!done.ok()) {
      result.error = done.error();
      // What was enqueued before the error may still use the batch.
      if (const Status ended = stream->Synchronize(); !ended.ok()) result.error = ended.error();
    }
    if (assist != nullptr) assist->End(failed);
    if (!result.error.has_value()) TellFailures(batch, result);
  }

  Status TryExecute(StepBatch& batch, StepResult& result) {
    for (const AdapterPlacement& placement : batch.placements) Register(placement, batch);
    RETURN_IF_ERROR(CopyPages(batch.copies));
    awaited.clear();
    std::int32_t assisted = 0;  // segments in the pool
    for (const AdapterSegment& segment : batch.segments) {
      RETURN_IF_ERROR(PlaceTable(segment.adapter));
      ChooseSide(segment, batch, assisted);
    }
    adapters.clear();  // only now: their tables stay where they are
    for (const AdapterSegment& segment : batch.segments) adapters.push_back(&tables.View(segment.adapter.slot));
    const std::int64_t replayed = graphs.ways().replayed;
    const DevicePlace place = {*stream, layout, arena, &graphs, assisted > 0 ? assist.get() : nullptr};
    RETURN_IF_ERROR(model.Forward(place, batch, adapters, result));
    result.replayed = graphs.ways().replayed > replayed;
    for (const AdapterSegment* const segment : awaited) {
      if (segment->to_device->failed()) failed.push_back({-1, segment->first_token, segment->num_tokens});
    }
    return Ok{};
  }

  // A load whose first step does not compute from the host tier never does.
  void Register(const AdapterPlacement& placement, const StepBatch& batch) {
    const std::size_t slot = placement.adapter.slot;
    if (slot >= slots.size()) slots.resize(slot + 1);
    slots[slot] = {placement.adapter.load, placement, nullptr};
    const bool in_host = std::any_of(batch.segments.begin(), batch.segments.end(), [&](const AdapterSegment& segment) {
      return segment.in_host && segment.adapter == placement.adapter;
    });
    if (assist == nullptr || !in_host) return;
    const auto built = std::make_shared<LoraViewBuilder::Built>();
    host_views.Build(placement.version->layout, placement.host_pages, *built);
    slots[slot].host = built;
  }

  // Hands the segment to the pool, if its adapter is in the host tier and the pool has room; else the device computes
  // it, and the step waits for its layers. `assisted`: how many segments the pool has.
  void ChooseSide(const AdapterSegment& segment, StepBatch& batch, std::int32_t& assisted) {
    const std::size_t slot = segment.adapter.slot;
    tables.SetGate(slot, nullptr, -1);
    if (!segment.in_host) {
      slots[slot].host = nullptr;  // the adapter is on the device
      return;
    }
    const LayerProgress* const to_device = segment.to_device.get();
    const LayerEvents* const events = to_device == nullptr ? nullptr : to_device->events();
    const std::uint32_t* gate = nullptr;
    // The processor computes linear layers alone.
    if (assist != nullptr && tables.View(slot).own == nullptr) {
      const std::shared_ptr<const LoraViewBuilder::Built>& host = slots[slot].host;
      CHECK(host != nullptr);
      gate = assist->AddSegment(
          {.first_row = segment.first_token,
           .rows = segment.num_tokens,
           .modules = host->view.modules,
           .owner = host,
           .arrived = events == nullptr ? nullptr : events->ArrivedWord(),
           .workers = static_cast<int>(CeilDivide(std::int64_t{segment.num_tokens}, RowsPerCore(segment.rank)))});
    }
    if (gate != nullptr) {
      tables.SetGate(slot, gate, assisted++);
    } else if (to_device != nullptr) {
      batch.arrivals.push_back(segment.to_device);
      awaited.push_back(&segment);
    } else {
      failed.push_back({-1, segment.first_token, segment.num_tokens});  // its layers may not be there
    }
  }

  // The sequences that have rows among those that failed.
  void TellFailures(const StepBatch& batch, StepResult& result) const {
    for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
      const auto first = static_cast<std::int64_t>(batch.sequences[i].tokens.first);
      const auto end = first + static_cast<std::int64_t>(batch.sequences[i].tokens.size);
      for (const AssistFailure& failure : failed) {
        if (failure.first_row >= end || failure.first_row + failure.rows <= first) continue;
        const std::string why =
            failure.segment < 0
                ? "the adapter is not on the device, and no thread of the processor is free to compute it; try again, "
                  "or raise --assist-cores"
                : "the processor, which computes an adapter until it is on the device, gave no answer in time; try "
                  "again, and lower --assist-cores if other programs take its processors";
        result.failures.push_back({static_cast<std::int32_t>(i), Internal(why)});
        break;
      }
    }
  }

  // Writes the adapter's table, unless it was.
  Status PlaceTable(AdapterRef adapter) {
    Slot& slot = slots[adapter.slot];
    CHECK_EQ(slot.load, adapter.load);
    if (!slot.waiting.has_value()) return Ok{};
    const RowAddresses rows(*slot.waiting, arena);
    RETURN_IF_ERROR(tables.Place(*stream, adapter.slot, rows.layout().dtype, rows.modules(), rows.own()));
    slot.waiting.reset();
    return Ok{};
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
                                                         const PagePool& pages, const PageArena& host,
                                                         const GpuExecutorOptions& options,
                                                         std::function<void()> on_completion) {
  CHECK(options.max_copies > 0);
  if (layout.has_scales()) {
    return InvalidArgument("type of keys and values on a device: expected f32, bf16 or f16, found I8", "kv_dtype");
  }
  CHECK(pages.memory_kind() == MemoryKind::kDevice);
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device.CreateStream());
  const auto bytes = static_cast<std::int64_t>(options.max_copies * 2 * sizeof(std::uint32_t));
  State::Pairs pairs{.max_copies = options.max_copies};
  ASSIGN_OR_RETURN(pairs.host, device.AllocatePinned("pages to copy", bytes));
  ASSIGN_OR_RETURN(pairs.device, device.Allocate("pages to copy", bytes));
  std::unique_ptr<AssistPool> assist;
  if (options.assist.cores > 0) {
    ASSIGN_OR_RETURN(assist, MakeAssistPool(device, model, options));
  }
  return std::unique_ptr<GpuExecutor>(
      new GpuExecutor(std::make_unique<State>(device, model, layout, pages.View(), host, options, std::move(stream),
                                              std::move(pairs), std::move(assist), std::move(on_completion))));
}

void GpuExecutor::Submit(StepBatch batch) { state_->thread->Submit(std::move(batch)); }

StepWays GpuExecutor::ways() const { return state_->graphs.ways(); }

bool GpuExecutor::Poll(StepResult& result) { return state_->thread->Poll(result); }

}  // namespace loramux
