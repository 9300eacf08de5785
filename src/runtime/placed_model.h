// The base model where it computes: on the CPU, or on a device. Makes all parts that depend on which of the two it is:
// pools, transfers and executors. Runtime, and the measurements of `loramux profile`, are put together from it, so both
// run the same parts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "base/result.h"
#include "engine/executor.h"
#include "gpu/device.h"
#include "memory/page_pool.h"
#include "model/base_matrix.h"
#include "model/device_model.h"
#include "model/model.h"
#include "residency/transfer.h"
#include "runtime/cpu_executor.h"
#include "tensor/kv_layout.h"

namespace loramux {

// Options of an executor on the CPU or on a device. On a device `backend` and `lora_variant` do not matter; `threads`
// sample the rows that the device leaves to the processor.
using ExecutorOptions = CpuExecutorOptions;

// Options of a transfer.
struct TransferOptions {
  bool assisted = false;               // on a device: an executor with AssistSetup::cores computes meanwhile
  ThreadedTransferOptions on_threads;  // only on the CPU
};

// What an automatic size of the pool leaves free of a device with so much memory, for batches that are larger than
// expected and for the driver.
std::int64_t DeviceReserve(std::int64_t memory);

// Owns the model and holds the device. All that it makes refers to it and must go first. Thread-safe where it is const;
// one executor computes at a time.
class PlacedModel {
 public:
  // Reads a Hugging Face directory, or the part that `weights` says, into `device` unless it is null (the CPU).
  // `progress` may be empty. Errors: those of the files; kResourceExhausted: the weights do not fit the device.
  // REQUIRES: a device keeps the whole model, so `weights` names no part then.
  static Result<std::unique_ptr<PlacedModel>> Load(const std::filesystem::path& directory,
                                                   std::shared_ptr<Device> device, const WeightOptions& weights,
                                                   const Progress& progress);
  // Takes a model that is in memory, and copies it to `device` unless that is null. Error (kResourceExhausted): it does
  // not fit.
  static Result<std::unique_ptr<PlacedModel>> Place(std::unique_ptr<Model> model, std::shared_ptr<Device> device);

  // Null: the CPU.
  Device* device() const { return device_.get(); }
  const ModelConfig& config() const { return device_ == nullptr ? host_->config() : on_device_->config(); }
  // The part of the model that is here, and its configuration; on a device, the whole.
  ModelPart part() const { return device_ == nullptr ? host_->part() : ModelPart{}; }
  const ModelConfig& own_config() const { return device_ == nullptr ? host_->own_config() : on_device_->config(); }
  // The floats of the model: those of its weights, or bf16 if they are quantised. Keys, values and adapters are kept in
  // them unless an option says otherwise.
  DType dtype() const;
  // The format of the layers' weights, and the bytes of all in memory.
  WeightFormat format() const;
  std::int64_t weight_bytes() const;
  // The matrices that adapters depend on. They refer to this object.
  BaseMatrices base_matrices() const;
  // False: the model has no output layer, so it only makes embeddings.
  bool generates() const;

  // Takes a device's memory for batches within the limits; nothing on the CPU, where MakeExecutor does. Before
  // MakeDevicePool, so that the pool may take what is left. Error (kResourceExhausted): they do not fit.
  Status Reserve(const ExecutorOptions& options, const KvLayout& layout);
  // The pool of the device tier. `bytes` 0: on a device, what is free, less a reserve. Error (kResourceExhausted): says
  // what is free and what would fit.
  Result<std::unique_ptr<PagePool>> MakeDevicePool(std::int64_t bytes, std::int64_t page_bytes) const;
  // The pool of the host tier, which a device's copy engines reach. Error: the system refuses the memory.
  Result<std::unique_ptr<PagePool>> MakeHostPool(std::int64_t bytes, std::int64_t page_bytes) const;
  // A transfer between the two pools, and from disk. Calls `on_completion` on threads of its own. Error: no memory.
  Result<std::unique_ptr<PageTransfer>> MakeTransfer(const TierMemory& memory, const TransferOptions& options,
                                                     std::function<void()> on_completion) const;
  // Makes the executor of steps. `layout` describes `pages`, the pool of the device tier. `host` is the memory of the
  // host tier, whose adapters the processor computes in place; on a device, only until they have arrived. No base: no
  // host tier. Calls `on_completion` on the executor's thread. Error: no memory. REQUIRES: Reserve with these limits.
  Result<std::unique_ptr<Executor>> MakeExecutor(const ExecutorOptions& options, const KvLayout& layout,
                                                 const PagePool& pages, const PageArena& host,
                                                 std::function<void()> on_completion);

 private:
  PlacedModel() = default;
  std::shared_ptr<Device> device_;          // null: the CPU
  std::unique_ptr<Model> host_;             // without a device
  std::unique_ptr<DeviceModel> on_device_;  // with one
};

}  // namespace loramux
