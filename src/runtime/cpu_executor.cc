#include "runtime/cpu_executor.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <sched.h>

#include "base/check.h"
#include "base/clock.h"
#include "model/sampler.h"

namespace loramux {
namespace {

// Points a LoraView's rows into the pages of a resident adapter.
class LoraViewBuilder {
 public:
  LoraViewBuilder(const PagePool& device, std::int64_t num_layers) : device_(device), num_layers_(num_layers) {}

  struct Built {
    std::uint64_t load_sequence = 0;
    LoraView view;
    std::vector<const std::byte*> rows;  // backing store of the view's row tables
  };

  void Build(const AdapterResidency& adapter, Built& built) const {
    const AdapterLayout& layout = adapter.version->layout;
    std::size_t row_count = 0;
    for (const ModulePlace& module : layout.modules) row_count += 2 * static_cast<std::size_t>(module.rank);
    built.load_sequence = adapter.load_sequence;
    built.rows.clear();
    built.rows.reserve(row_count);  // the row tables point into `rows`, which must not reallocate
    built.view.modules.assign(static_cast<std::size_t>(num_layers_ * 7 + 1), LoraWeights{});
    for (const ModulePlace& module : layout.modules) {
      LoraWeights& weights = built.view.modules[LoraView::Index(module.layer, module.target, num_layers_)];
      weights.rank = module.rank;
      weights.scale = module.scale;
      weights.dtype = layout.dtype;
      weights.a_rows = AddRows(adapter, module.a_rows, built.rows);
      weights.b_rows = AddRows(adapter, module.b_rows, built.rows);
    }
  }

 private:
  const std::byte* const* AddRows(const AdapterResidency& adapter, const std::vector<RowPlace>& places,
                                  std::vector<const std::byte*>& rows) const {
    const std::size_t first = rows.size();
    for (const RowPlace place : places) rows.push_back(device_.Data(adapter.device_pages[place.page]) + place.offset);
    return rows.data() + first;
  }

  const PagePool& device_;
  std::int64_t num_layers_;
};

}  // namespace

struct CpuExecutor::State {
  CpuExecutorOptions options;
  Model* model;
  KvLayout layout;
  PageArena arena;
  ThreadPool pool;
  KernelContext context;
  LoraViewBuilder view_builder;
  std::function<void()> on_completion;

  std::vector<std::unique_ptr<LoraViewBuilder::Built>> views;  // by residency slot
  std::vector<SequenceChunk> sequences;
  std::vector<SamplerScratch> scratch;         // one per thread
  std::vector<const LayerProgress*> arrivals;  // that the batch in flight depends on
  const std::function<void(std::int64_t)> wait_for_layer = [this](std::int64_t layer) { WaitForLayer(layer); };
  OsClock clock;

  std::mutex mutex;
  std::condition_variable work;
  const ExecutorBatch* batch = nullptr;  // in flight
  bool done = false;
  bool stopping = false;
  ExecutorResult result;
  std::thread thread;

  State(CpuExecutorOptions o, Model* m, const KvLayout& l, PagePool* device, std::function<void()> callback)
      : options(o),
        model(m),
        layout(l),
        arena(device->View()),
        pool(o.threads > 0 ? o.threads : AvailableProcessors()),
        context{o.backend, &pool},
        view_builder(*device, m->config().num_layers),
        on_completion(std::move(callback)),
        scratch(static_cast<std::size_t>(pool.size())) {
    model->Reserve(options.max_batch_tokens, options.max_running, options.max_positions, options.max_rank, pool.size());
  }

  const LoraView* ViewOf(const AdapterResidency& adapter) {
    const std::size_t index = adapter.slot;  // slots are reused; load_sequence distinguishes the adapters
    if (index >= views.size()) views.resize(index + 1);
    if (views[index] == nullptr) views[index] = std::make_unique<LoraViewBuilder::Built>();
    if (views[index]->load_sequence != adapter.load_sequence) view_builder.Build(adapter, *views[index]);
    return &views[index]->view;
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

  void Execute(const ExecutorBatch& work_batch) {
    if (!work_batch.copies.empty()) CopyPages(work_batch.copies);
    sequences.clear();
    arrivals.clear();
    result.waited = 0;
    for (const ExecutorChunk& chunk : work_batch.chunks) {
      DependOn(chunk.adapter_arrival);
      DependOn(chunk.kv_arrival);
      SequenceChunk sequence;
      sequence.tokens = chunk.tokens;
      sequence.position = chunk.position;
      sequence.pages = chunk.pages;
      sequence.adapter = chunk.adapter == nullptr ? nullptr : ViewOf(*chunk.adapter);
      sequence.logit_rows = chunk.sample ? 1 : 0;
      sequence.rope_length = chunk.prompt_tokens;
      sequences.push_back(sequence);
    }
    const std::span<const float> logits = model->Forward(
        context, sequences, layout, arena,
        {.lora_variant = options.lora_variant, .before_layer = arrivals.empty() ? nullptr : &wait_for_layer});
    SampleAll(work_batch, logits);
  }

  void DependOn(const LayerProgress* arrival) {
    if (arrival != nullptr && std::find(arrivals.begin(), arrivals.end(), arrival) == arrivals.end())
      arrivals.push_back(arrival);
  }

  // Blocks until the layer has arrived everywhere. After a failure the step continues with the pages' arbitrary
  // content: rows do not depend on each other, and the engine discards those of the affected requests.
  void WaitForLayer(std::int64_t layer) {
    const auto is_there = [layer](const LayerProgress* arrival) {
      return arrival->failed() || arrival->arrived() > std::min<std::int64_t>(layer, arrival->layers() - 1);
    };
    if (std::all_of(arrivals.begin(), arrivals.end(), is_there)) return;
    const TimeNs begin = clock.Now();
    for (const LayerProgress* arrival : arrivals) arrival->Wait(layer);
    result.waited += clock.Now() - begin;
  }

  static bool HasFailed(const LayerProgress* arrival) { return arrival != nullptr && arrival->failed(); }

  void SampleAll(const ExecutorBatch& work_batch, std::span<const float> logits) {
    sampled_chunks.clear();
    for (const ExecutorChunk& chunk : work_batch.chunks) {
      if (chunk.sample) sampled_chunks.push_back(&chunk);
    }
    const std::size_t vocab = static_cast<std::size_t>(model->config().vocab_size);
    CHECK_EQ(logits.size(), sampled_chunks.size() * vocab);
    result.tokens.resize(sampled_chunks.size());
    pool.Run(static_cast<std::int64_t>(sampled_chunks.size()), [&](std::int64_t task, int worker) {
      const std::size_t i = static_cast<std::size_t>(task);
      const ExecutorChunk& chunk = *sampled_chunks[i];
      if (HasFailed(chunk.adapter_arrival) || HasFailed(chunk.kv_arrival)) {  // its logits may be NaN
        result.tokens[i] = SampledToken{};
        return;
      }
      result.tokens[i] = Sample(logits.subspan(i * vocab, vocab), *chunk.sampling, chunk.context,
                                scratch[static_cast<std::size_t>(worker)]);
    });
  }
  std::vector<const ExecutorChunk*> sampled_chunks;

  void Run() {
    std::unique_lock lock(mutex);
    while (true) {
      work.wait(lock, [this] { return stopping || (batch != nullptr && !done); });
      if (stopping) return;
      const ExecutorBatch* current = batch;
      lock.unlock();
      Execute(*current);
      lock.lock();
      done = true;
      lock.unlock();
      on_completion();
      lock.lock();
    }
  }
};

CpuExecutor::CpuExecutor(CpuExecutorOptions options, Model* model, const KvLayout& layout, PagePool* device,
                         std::function<void()> on_completion)
    : state_(std::make_unique<State>(options, model, layout, device, std::move(on_completion))) {
  state_->thread = std::thread([state = state_.get()] { state->Run(); });
}

CpuExecutor::~CpuExecutor() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->work.notify_all();
  state_->thread.join();
}

void CpuExecutor::Submit(const ExecutorBatch& batch) {
  {
    const std::lock_guard lock(state_->mutex);
    CHECK(state_->batch == nullptr);
    state_->batch = &batch;
    state_->done = false;
  }
  state_->work.notify_one();
}

bool CpuExecutor::Poll(ExecutorResult& result) {
  const std::lock_guard lock(state_->mutex);
  if (state_->batch == nullptr || !state_->done) return false;
  std::swap(result.tokens, state_->result.tokens);
  result.waited = state_->result.waited;
  state_->batch = nullptr;
  return true;
}

int AvailableProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace loramux
