// Everything that serving one model needs, put together: weights, pools, registry, transfers, executor, engine and its
// thread. What `serve`, `generate`, the benchmarks and the end-to-end tests start from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "adapter/registry.h"
#include "base/clock.h"
#include "base/result.h"
#include "engine/cpu_executor.h"
#include "engine/engine.h"
#include "engine/engine_loop.h"
#include "engine/flight_recorder.h"
#include "memory/page_geometry.h"
#include "model/model.h"
#include "schedule/hint_predictor.h"
#include "schedule/history_predictor.h"
#include "schedule/queue_order.h"

namespace loramux {

struct RuntimeOptions {
  std::int64_t device_memory = std::int64_t{1} << 30;  // bytes of the page pool: KV cache and adapters
  std::int64_t host_memory = std::int64_t{1} << 30;    // bytes of the host tier; 0: none
  std::int64_t page_tokens = 0;                        // 0: ChoosePageGeometry decides
  std::optional<DType> kv_dtype;                       // nullopt: the type of the base weights
  std::optional<DType> lora_dtype;                     // nullopt: ChooseAdapterDType decides
  std::int64_t max_lora_rank = 4096;
  std::int64_t max_model_len = 0;         // 0: the model's own
  std::string cache = "loramux";          // a regime's name (cache/cache_regime.h)
  std::string adapter_prefetch = "none";  // or "histogram" (cache/adapter_arrival_histogram.h)
  // if the regime has one; never with dynamic rope scaling: keys depend on
  bool prefix_cache = true;
  // the whole length
  bool whole_prompts = false;  // computed in one step, however long (ComputePromptsWhole)
  SchedulerOptions scheduler;  // page_tokens and the regime's options are filled in
  // who is let in first; age bound and costs are the scheduler's, tokens the device's
  QueueOrderOptions queue;
  std::string length_predictor = "history";  // "history", "proxy" (hints of requests, else history), "none"
  int threads = 0;                           // 0: one per processor
  Backend backend = Backend::kCpu;
  LoraVariant lora_variant = LoraVariant::kMbgmv;
  ThreadedTransferOptions transfer;     // of adapters, and of keys and values: a link each
  std::vector<std::string> base_names;  // what the base model answers to
  // Around each of the transfers (adapters, keys and values); empty: as they are. For faults behind the real
  // interfaces.
  std::function<std::unique_ptr<AdapterTransfer>(std::unique_ptr<AdapterTransfer>)> wrap_transfer;
  // Around the executor; empty: as it is. For watching the steps of the real engine.
  std::function<std::unique_ptr<Executor>(std::unique_ptr<Executor>)> wrap_executor;
  // of all steps from Start on; outlives the runtime. Null: none
  FlightRecorder* recorder = nullptr;
};

// Not movable: the parts point to each other. Thread-safe as its parts are.
class Runtime {
 public:
  // Loads the model from a Hugging Face directory.
  static Result<std::unique_ptr<Runtime>> Load(const std::filesystem::path& model_directory, RuntimeOptions options,
                                               const Progress& progress);
  // Around a model that is in memory already (benchmarks).
  static Result<std::unique_ptr<Runtime>> Create(std::unique_ptr<Model> model, RuntimeOptions options);
  ~Runtime();  // Stop()
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Starts the engine's thread. Before that, the caller may step the engine itself.
  void Start();
  // Cancels what is still in and ends the engine's thread. Idempotent.
  void Stop();

  Engine& engine() { return *engine_; }
  AdapterRegistry& registry() { return *registry_; }
  const Model& model() const { return *model_; }
  const Clock& clock() const { return clock_; }
  const PageGeometry& geometry() const { return geometry_; }
  std::int64_t max_model_len() const { return max_model_len_; }
  // What has been learned of output lengths; null: nothing is. Thread-safe.
  HistoryPredictor* history() { return history_.get(); }

 private:
  Runtime() = default;
  Status MakeQueue(const RuntimeOptions& options);
  QueueOrderOptions QueueOptions(const RuntimeOptions& options) const;
  RecordedSetup DescribeSetup(const RuntimeOptions& options) const;

  OsClock clock_;
  Wakeup wakeup_;
  std::unique_ptr<Model> model_;
  PageGeometry geometry_;
  std::int64_t max_model_len_ = 0;
  std::unique_ptr<PagePool> device_, host_;
  std::unique_ptr<AdapterRegistry> registry_;
  std::unique_ptr<EvictionPolicy> eviction_;
  std::unique_ptr<DependencyTree> tree_;
  std::unique_ptr<QueueOrder> queue_;
  std::unique_ptr<HistoryPredictor> history_;
  std::unique_ptr<HintPredictor> hints_;
  std::unique_ptr<AdapterTransfer> transfer_, kv_transfer_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<EngineLoop> loop_;
  FlightRecorder* recorder_ = nullptr;
  RecordedSetup setup_;  // of a recording
};

}  // namespace loramux
