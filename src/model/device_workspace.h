// The device memory in which batches are computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "formats/dtype.h"
#include "formats/model_config.h"
#include "gpu/device.h"
#include "gpu/kernels/experts.h"
#include "memory/arena.h"
#include "model/device_limits.h"
#include "model/device_results.h"
#include "model/forward_pass.h"
#include "model/gpu_rows.h"
#include "model/model.h"
#include "model/step_rows.h"
#include "model/step_upload.h"

namespace loramux {

// What the activations have room for.
struct ActivationSizes {
  std::int64_t rows = 0;        // rows of a batch
  std::int64_t logit_rows = 0;  // rows of a block of logits
  std::int64_t max_rank = 0;
  std::int64_t chunks = 0;   // gpu::DecodeChunks of one launch
  std::int64_t widened = 0;  // bytes

  // The larger of each.
  ActivationSizes Max(const ActivationSizes& other) const;
  friend bool operator==(const ActivationSizes&, const ActivationSizes&) = default;
};

// The activations of a batch and the kernels' scratch memory, in one piece of device memory.
struct Activations {
  ForwardBuffers<GpuRows> rows;
  float* lora = nullptr;       // partial sums of gpu::LoraShrink
  float* attention = nullptr;  // partial results of gpu::AttentionDecode
  void* widened = nullptr;     // outputs of a quantised matrix in floats
  gpu::ExpertLists experts = {};
  std::int64_t bytes = 0;

  // Places them from `base` on; null: only adds up the bytes. `dtype`: of the inputs of products.
  static Activations Place(const ModelConfig& config, DType dtype, const ActivationSizes& sizes, std::byte* base);
};

// The memory of batches on a device. It grows to the largest batch; then nothing allocates.
class DeviceWorkspace {
 public:
  // Takes no memory yet. The device and the configuration outlive it. `widened_bytes`: what products of many rows
  // widen quantised weights into; 0: there are none.
  DeviceWorkspace(Device& device, const ModelConfig& config, DType dtype, std::int64_t widened_bytes = 0);

  // As DeviceModel::Reserve.
  Status Reserve(const DeviceModelLimits& limits);
  // Bytes of device memory that Reserve of such a workspace takes.
  static std::int64_t BytesFor(const ModelConfig& config, DType dtype, std::int64_t widened_bytes,
                               const DeviceModelLimits& limits);
  std::int64_t bytes() const { return activations_.bytes + step.device_bytes() + results.device_bytes(); }

  // Makes room for `batch` and its `result`, and writes the step. `room`: null, or what the launches of a batch of
  // single rows cover; its max_rank is the batch's, and is rounded up. Error: memory cannot grow. REQUIRES: earlier
  // work is done.
  Status Prepare(const KvLayout& layout, StepResult& result, StepRoom* room);
  // Enqueues the copy of what Prepare wrote.
  void Upload(DeviceStream& stream) const;
  // How often any of the memory has changed: what was recorded with another number has wrong addresses.
  std::uint64_t generation() const { return generation_ + step.generation() + results.generation(); }

  const Activations& activations() const { return activations_; }
  std::int64_t widened_bytes() const { return sizes_.widened; }

  StepRows<DeviceLoraView> batch;
  StepUpload step;
  DeviceResults results;

 private:
  Status Grow(const ActivationSizes& sizes);
  std::int64_t BytesFor(const DeviceModelLimits& limits) const {
    return BytesFor(config_, dtype_, widened_bytes_, limits);
  }

  Device& device_;
  const ModelConfig& config_;
  DType dtype_;
  const std::int64_t widened_bytes_;
  ActivationSizes sizes_;
  std::unique_ptr<Arena> arena_;
  std::uint64_t generation_ = 0;  // number of times that the activations were allocated
  Activations activations_;
};

}  // namespace loramux
