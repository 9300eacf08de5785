// Runs synthetic steps on the real executor, on the CPU or on a device. Times each from Submit until Poll returns the
// result, as the engine waits for it: the device's work is part of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "costs/performance_model.h"
#include "engine/step_batch_builder.h"
#include "engine/wakeup.h"
#include "memory/page_geometry.h"
#include "memory/page_pool.h"
#include "profile/points.h"
#include "residency/adapter_residency.h"
#include "runtime/placed_model.h"
#include "runtime/runtime.h"

namespace loramux {

// One executor with its memory and adapters, all made by the model's place. Not thread-safe.
class StepBench {
 public:
  // The bench has the memory, types and sizes of a server with these options. `adapters` are directories; all adapters
  // are loaded to the device. `model` must outlive the bench. Errors: those of
  // registering an adapter; the device memory does not hold the adapters and the longest sequence; no memory.
  static Result<std::unique_ptr<StepBench>> Create(PlacedModel& model, const RuntimeOptions& options,
                                                   const std::vector<std::string>& adapters);

  const PointSpace& space() const { return space_; }
  const PageGeometry& geometry() const { return geometry_; }
  // The adapters, sorted by rank as in PointSpace::ranks.
  const std::vector<std::shared_ptr<const AdapterVersion>>& adapters() const { return versions_; }
  int threads() const { return threads_; }

  // Whether steps with adapters depend on the kernel variant. A device has one set of LoRA kernels.
  bool variants_differ() const { return model_.device() == nullptr; }
  // Makes a new executor with this kernel variant, where that is another one. REQUIRES: called before the first Run.
  // Error: no memory.
  Status UseVariant(LoraVariant variant);
  // Returns the content of the step as the performance model counts it.
  StepLoad Load(const StepPoint& point);
  // Runs the step once and returns its time in seconds. Error: the device fails. REQUIRES: drawn from space().
  Result<double> Run(const StepPoint& point);

 private:
  StepBench(PlacedModel& model, const RuntimeOptions& options) : model_(model), options_(options) {}
  Status Register(const std::vector<std::string>& directories);
  Status MakeMemory();
  Status LoadAdapters();
  Status FillPages();
  Status CopyToPages(std::span<const std::uint32_t> pages);
  ExecutorOptions ExecutorOptionsOf(LoraVariant variant) const;
  void MakeBatch(const StepPoint& point, StepBatchBuilder& builder) const;

  OsClock clock_;
  Wakeup wakeup_;
  PlacedModel& model_;
  const RuntimeOptions options_;
  PageGeometry geometry_;
  PointSpace space_;
  int threads_ = 0;
  std::unique_ptr<AdapterRegistry> registry_;
  std::vector<std::shared_ptr<const AdapterVersion>> versions_;  // sorted by rank
  std::unique_ptr<PagePool> device_, host_;                      // the host's single page has the content of KV pages
  std::unique_ptr<PageTransfer> transfer_;
  std::unique_ptr<ResidencyManager> residency_;
  std::vector<const AdapterResidency*> adapters_;  // as versions_
  std::vector<std::uint32_t> kv_pages_;
  std::vector<TokenId> tokens_;  // random; as many as a step may compute
  SamplingParams greedy_;
  std::unique_ptr<Executor> executor_;
  StepBatchBuilder builder_;  // for executor_
  StepResult result_;
};

}  // namespace loramux
