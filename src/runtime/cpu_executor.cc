#include "runtime/cpu_executor.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "runtime/lora_view_builder.h"
#include "runtime/step_thread.h"

namespace loramux {
namespace {

// What a slot holds: a load of an adapter, in the device's pages, and in the host tier's if its first step computes
// there.
struct Placed {
  std::uint64_t load = 0;
  LoraViewBuilder::Built device, host;
};

}  // namespace

struct CpuExecutor::State {
  CpuExecutorOptions options;
  Model* model;
  KvLayout layout;
  PageArena arena;
  ThreadPool pool;
  KernelContext context;
  LoraViewBuilder device_views, host_views;

  std::vector<std::unique_ptr<Placed>> placed;  // by slot
  std::vector<const LoraView*> adapters;        // by segment of the step
  std::unique_ptr<StepThread> thread;           // last, because it uses the others

  State(CpuExecutorOptions o, Model* m, const KvLayout& l, const TierMemory& memory,
        std::function<void()> on_completion)
      : options(o),
        model(m),
        layout(l),
        arena(memory.device),
        pool(o.threads > 0 ? o.threads : AvailableProcessors()),
        context{o.backend, &pool},
        device_views(memory.device, m->config().num_layers),
        host_views(memory.host, m->config().num_layers) {
    model->Reserve(options.max_batch_tokens, options.max_running + options.max_drafted_tokens, options.max_positions,
                   options.max_rank, pool.size());
    thread = std::make_unique<StepThread>([this](StepBatch& batch, StepResult& result) { Execute(batch, result); },
                                          std::move(on_completion));
  }

  // A load whose first step does not compute in the host tier never does.
  void Place(const AdapterPlacement& placement, const StepBatch& batch) {
    const std::size_t slot = placement.adapter.slot;
    if (slot >= placed.size()) placed.resize(slot + 1);
    if (placed[slot] == nullptr) placed[slot] = std::make_unique<Placed>();
    placed[slot]->load = placement.adapter.load;
    const AdapterLayout& layout = placement.version->layout;
    device_views.Build(layout, placement.pages, placed[slot]->device);
    const bool in_host = std::any_of(batch.segments.begin(), batch.segments.end(), [&](const AdapterSegment& segment) {
      return segment.in_host && segment.adapter == placement.adapter;
    });
    if (in_host) host_views.Build(layout, placement.host_pages, placed[slot]->host);
  }

  const LoraView* ViewOf(const AdapterSegment& segment) const {
    const Placed& slot = *placed[segment.adapter.slot];
    CHECK_EQ(slot.load, segment.adapter.load);
    return segment.in_host ? &slot.host.view : &slot.device.view;
  }

  // Copies in pieces, so that all threads share the copy of even a single page of megabytes.
  void CopyPages(std::span<const PageCopy> copies) {
    constexpr std::size_t kPiece = std::size_t{128} << 10;
    const std::size_t bytes = layout.PageBytes(), pieces = (bytes + kPiece - 1) / kPiece;
    pool.Run(static_cast<std::int64_t>(copies.size() * pieces), [&](std::int64_t task, int) {
      const PageCopy& copy = copies[static_cast<std::size_t>(task) / pieces];
      const std::size_t begin = static_cast<std::size_t>(task) % pieces * kPiece;
      std::memcpy(arena.base + copy.destination * arena.page_stride + begin,
                  arena.base + copy.source * arena.page_stride + begin, std::min(kPiece, bytes - begin));
    });
  }

  void Execute(const StepBatch& batch, StepResult& result) {
    for (const AdapterPlacement& placement : batch.placements) Place(placement, batch);
    if (!batch.copies.empty()) CopyPages(batch.copies);
    adapters.clear();
    for (const AdapterSegment& segment : batch.segments) adapters.push_back(ViewOf(segment));
    model->Forward({context, layout, arena, options.lora_variant, options.group}, batch, adapters, result);
  }
};

CpuExecutor::CpuExecutor(CpuExecutorOptions options, Model* model, const KvLayout& layout, const TierMemory& memory,
                         std::function<void()> on_completion)
    : state_(std::make_unique<State>(options, model, layout, memory, std::move(on_completion))) {}

CpuExecutor::~CpuExecutor() = default;

void CpuExecutor::Submit(StepBatch batch) { state_->thread->Submit(std::move(batch)); }

bool CpuExecutor::Poll(StepResult& result) { return state_->thread->Poll(result); }

}  // namespace loramux
