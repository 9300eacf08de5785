// Runs synthetic steps on the real executor. Times each from Submit until Poll returns the result, as the engine waits
// for it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "adapter/residency.h"
#include "base/clock.h"
#include "base/result.h"
#include "engine/step_batch_builder.h"
#include "engine/wakeup.h"
#include "memory/page_geometry.h"
#include "memory/page_pool.h"
#include "model/model.h"
#include "profile/points.h"
#include "runtime/cpu_executor.h"
#include "schedule/profile/performance_model.h"

namespace loramux {

// One executor with its memory and adapters. Not thread-safe.
class StepBench {
 public:
  // Settings.
  struct Options {
    std::int64_t device_memory = std::int64_t{1} << 30;  // bytes: adapters first, the rest for keys and values
    std::int64_t page_tokens = 0;                        // 0: chosen by ChoosePageGeometry
    std::optional<DType> kv_dtype, lora_dtype;
    std::int64_t max_batch_tokens = 512, max_running = 256, max_positions = 0;  // max_positions 0: the model's
    int threads = 0;
  };

  // `adapters` are directories; all adapters are loaded to the device. `model` must outlive the bench. Errors: those of
  // registering an adapter; the device memory does not hold the adapters and the longest sequence.
  static Result<std::unique_ptr<StepBench>> Create(Model* model, const Options& options,
                                                   const std::vector<std::string>& adapters);

  const PointSpace& space() const { return space_; }
  const PageGeometry& geometry() const { return geometry_; }
  // Returns the adapters, sorted by rank as in PointSpace::ranks.
  std::vector<std::shared_ptr<const AdapterVersion>> Adapters() const;
  int threads() const { return threads_; }

  // Makes a new executor with this kernel variant. REQUIRES: called before the first Run.
  void UseVariant(LoraVariant variant);
  // Returns the content of the step as the performance model counts it.
  StepLoad Load(const StepPoint& point);
  // Runs the step once and returns its time in seconds. REQUIRES: drawn from space().
  double Run(const StepPoint& point);

 private:
  StepBench() = default;
  Status LoadAdapters(const std::vector<std::string>& directories);
  Status FillPages();
  void MakeBatch(const StepPoint& point, StepBatchBuilder& builder) const;

  OsClock clock_;
  Wakeup wakeup_;
  Model* model_ = nullptr;
  Options options_;
  PageGeometry geometry_;
  PointSpace space_;
  int threads_ = 0;
  std::unique_ptr<PagePool> device_, host_;
  std::unique_ptr<AdapterRegistry> registry_;
  std::optional<InlineTransfer> transfer_;
  std::unique_ptr<ResidencyManager> residency_;
  std::vector<const AdapterResidency*> adapters_;  // sorted by rank
  std::vector<std::uint32_t> kv_pages_;
  std::vector<TokenId> tokens_;  // random; as many as a step may compute
  SamplingParams greedy_;
  std::unique_ptr<CpuExecutor> executor_;
  StepBatchBuilder builder_;  // for executor_
  StepResult result_;
};

}  // namespace loramux
