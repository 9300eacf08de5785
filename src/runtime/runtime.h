// Everything needed to serve one model, on the CPU or on a device: weights, pools, registry, transfers, executor,
// engine and its thread. `serve`, `generate`, the benchmarks and the end-to-end tests start from it.
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
#include "collective/collectives.h"
#include "engine/control_plane.h"
#include "engine/engine.h"
#include "engine/engine_loop.h"
#include "memory/page_geometry.h"
#include "memory/tier.h"
#include "model/model.h"
#include "record/flight_recorder.h"
#include "runtime/group_leader.h"
#include "runtime/placed_model.h"
#include "schedule/predict/hint_predictor.h"
#include "schedule/predict/history_predictor.h"
#include "schedule/system_spec.h"

namespace loramux {

// Options of Runtime.
struct RuntimeOptions {
  std::shared_ptr<Device> device;  // the device that computes and holds weights and pages (ChooseDevice); null: the CPU
  WeightOptions weights;           // how Load stores the weights
  // Bytes of the page pool for KV cache and adapters. 0, with a device alone: what is free beside weights and
  // activations, less a reserve.
  std::int64_t device_memory = std::int64_t{1} << 30;
  std::int64_t host_memory = std::int64_t{1} << 30;  // bytes of the host tier, pinned for a device; 0: none
  std::int64_t page_tokens = 0;                      // 0: ChoosePageGeometry decides
  std::optional<DType> kv_dtype;                     // kI8 on the CPU only; nullopt: the base weights'
  std::optional<DType> lora_dtype;                   // nullopt: ChooseAdapterDType decides
  std::int64_t max_lora_rank = 4096;
  std::filesystem::path length_directory;  // LengthCache for adapters with DoRA; empty: each load computes lengths
  // An adapter that is read from disk is used once the whole of it was verified. False, on the CPU: layer by layer.
  bool verify_before_use = false;
  // The processor's part of a device's steps, unless SystemSpec::cold_start_policy says kWait or there is no host
  // tier. cores -1: half of the processors, at least one.
  AssistSetup assist = {.cores = -1};
  // Positions; 0: the model's own. With dynamic rope scaling up to `factor` times as many, then without prefix cache.
  std::int64_t max_model_len = 0;
  // What follows from the model, the machine and the cache regime is filled in. REQUIRES: no speculation on a device.
  // No history is kept for models with recurrent layers without snapshots of their states, and with dynamic rope
  // scaling, where keys depend on the whole length.
  SystemSpec spec;
  int threads = 0;  // 0: one per processor
  // This rank's end of the group that computes the model together; null: this process computes the whole. REQUIRES with
  // a group: rank 0, no device, and weights.part is its part.
  std::shared_ptr<Collectives> group;
  std::function<void()> on_group_end;  // called when the group has lost a rank, on any thread; may be empty
  Backend backend = Backend::kCpu;
  LoraVariant lora_variant = LoraVariant::kMbgmv;
  ThreadedTransferOptions transfer;     // on the CPU
  std::vector<std::string> base_names;  // names of the base model
  // further names of it, with which those of adapters' base models are compared (AdapterRegistry::Options)
  std::vector<std::string> model_names;
  AdapterRegistry::Complete complete_adapter;  // AdapterRegistry::Options::complete
  // Wraps the transfer. Empty: not wrapped. For injecting faults behind the
  // real interfaces.
  std::function<std::unique_ptr<PageTransfer>(std::unique_ptr<PageTransfer>)> wrap_transfer;
  // Wraps the executor. Empty: not wrapped. For observing the steps of the real engine.
  std::function<std::unique_ptr<Executor>(std::unique_ptr<Executor>)> wrap_executor;
  // Records all steps from Start on; must outlive the runtime. Null: no recording.
  FlightRecorder* recorder = nullptr;
};

// Owns all parts. Not movable, because the parts point to each other. Thread-safe as far as its parts are.
class Runtime {
 public:
  // Loads the model from a Hugging Face directory and reports to `progress`. Errors: those of the files and options.
  static Result<std::unique_ptr<Runtime>> Load(const std::filesystem::path& model_directory, RuntimeOptions options,
                                               const Progress& progress);
  // Wraps a model that is already in memory (for benchmarks), or copies it to the device.
  static Result<std::unique_ptr<Runtime>> Create(std::unique_ptr<Model> model, RuntimeOptions options);
  // The same where the model is in its place. REQUIRES: options.device is the model's.
  static Result<std::unique_ptr<Runtime>> Create(std::unique_ptr<PlacedModel> model, RuntimeOptions options);
  ~Runtime();  // calls Stop()
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Starts the engine thread. Before this call, the caller may step the engine itself.
  void Start();
  // Cancels all accepted requests and ends the engine thread. Idempotent.
  void Stop();

  // The parts, owned by the runtime. max_model_len: positions that a sequence may have.
  Engine& engine() { return *engine_; }
  AdapterRegistry& registry() { return *registry_; }
  const ModelConfig& config() const { return model_->config(); }
  // The floats of the base model (PlacedModel::dtype), the format of its layers, and the bytes of its weights in
  // memory.
  DType base_dtype() const { return model_->dtype(); }
  WeightFormat weight_format() const { return model_->format(); }
  std::int64_t weight_bytes() const { return model_->weight_bytes(); }
  bool on_device() const { return model_->device() != nullptr; }
  const Clock& clock() const { return clock_; }
  const PageGeometry& geometry() const { return geometry_; }
  std::int64_t max_model_len() const { return max_model_len_; }
  // False: the model has no output layer, so it only makes embeddings.
  bool generates() const { return model_->generates(); }
  // Whether requests may speculate (SystemSpec::speculation).
  bool speculates() const { return speculates_; }
  // Why the group of ranks has ended; nullopt: it has not, or there is none. Thread-safe.
  std::optional<Error> GroupFailure() const { return leader_ == nullptr ? std::nullopt : leader_->failure(); }
  // GroupLeader::DescribeSteps; empty: there is no group.
  std::string DescribeGroup() const { return leader_ == nullptr ? std::string() : leader_->DescribeSteps(); }
  // The memory of the pools. For transfers and for tests that look at pages.
  TierMemory tiers() const { return plane_->tiers(); }
  // The learned output lengths; null if no history is kept. Thread-safe.
  HistoryPredictor* history() { return history_.get(); }

 private:
  Runtime() = default;
  // The parts of Create, in order. MakePlane completes the options.
  Status MakePredictor(const std::string& name);
  Status MakePlane(RuntimeOptions& options);
  Status MakePools(const RuntimeOptions& options, ControlPlaneOptions& plane);
  void MakeRegistry(const RuntimeOptions& options);
  Status StartGroup(const RuntimeOptions& options);
  // Tells the engine, and the other ranks, of an adapter that may be asked for from now on.
  void TellOf(const std::shared_ptr<const AdapterVersion>& version);
  Status MakeTransfer(const RuntimeOptions& options);
  Status MakeExecutor(const RuntimeOptions& options);
  AssistSetup AssistOf(const RuntimeOptions& options) const;
  // Where a profile measured the assistance: plans count with the cores of AssistOf, and the workers share segments by
  // what a core was measured to keep up with.
  void PlanAssist(RuntimeOptions& options) const;
  // States of a model cannot take back what a wrong draft computed, so a model with states drafts nothing.
  void PlanSpeculation(SpeculationOptions& speculation) const;
  ExecutorOptions ExecutorOptionsOf(const RuntimeOptions& options) const;
  RecordedSetup DescribeSetup(const RuntimeOptions& options) const;

  OsClock clock_;
  Wakeup wakeup_;
  std::unique_ptr<PlacedModel> model_;
  PageGeometry geometry_;
  KvSlices kv_slices_;
  std::int64_t max_model_len_ = 0;
  bool speculates_ = false;
  std::int64_t max_positions_ = 0;  // positions of the longest sequence that fits the device
  std::unique_ptr<ControlPlane> plane_;
  std::unique_ptr<AdapterRegistry> registry_;
  std::unique_ptr<HistoryPredictor> history_;
  std::unique_ptr<HintPredictor> hints_;
  std::unique_ptr<GroupLeader> leader_;  // null: there is no group
  std::unique_ptr<PageTransfer> transfer_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<EngineLoop> loop_;
  FlightRecorder* recorder_ = nullptr;
  RecordedSetup setup_;  // for the recording
};

}  // namespace loramux
