// The base model on a device: row-major weights in device memory, and the forward pass over a mixed batch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "formats/model_config.h"
#include "gpu/device.h"
#include "model/device_limits.h"
#include "model/device_lora.h"
#include "model/device_weights.h"
#include "model/forward_batch.h"
#include "model/model.h"
#include "tensor/kv_layout.h"
#include "tensor/page_arena.h"

namespace loramux {

// One sequence's part of a batch on a device. `pages` are indices of the device's arena, in host memory.
using DeviceSequenceChunk = SequenceChunkOf<DeviceLoraView>;

class AssistPool;
class DeviceWorkspace;
class StepGraphs;

// A base model on a device: runs ForwardPass with GpuOps. Owns the weights and the workspace in device memory. Not
// thread-safe: one Forward at a time. The device outlives it.
class DeviceModel {
 public:
  // Takes over weights that lie on `device`. Load and Upload make them.
  DeviceModel(ModelConfig config, DeviceWeights weights, Device& device);
  ~DeviceModel();
  // Reads a Hugging Face directory into device memory. `progress` may be empty; `added_tokens` as in WeightOptions.
  // Errors: those of the files (as Model::Load), and kResourceExhausted if the weights do not fit.
  static Result<std::unique_ptr<DeviceModel>> Load(const std::filesystem::path& directory, Device& device,
                                                   const Progress& progress, std::int64_t added_tokens = 0);
  // Copies a model of the CPU, for tests and benchmarks. Error (kResourceExhausted): it does not fit.
  static Result<std::unique_ptr<DeviceModel>> Upload(const Model& host, Device& device);

  const ModelConfig& config() const { return config_; }
  const DeviceWeights& weights() const { return weights_; }
  // The type of the weights, and of the inputs of products.
  DType dtype() const { return weights_.dtype; }
  // Bytes of device memory.
  std::int64_t WeightBytes() const;
  std::int64_t WorkspaceBytes() const;

  // Takes memory for batches within the limits, so that Forward takes none. Larger batches still work while memory
  // lasts. Error (kResourceExhausted): says what was asked for, what is free, and which max_tokens would fit.
  Status Reserve(const DeviceModelLimits& limits);

  // Computes the batch, as Model::Forward, and returns when the results are there. Returns the time that the host
  // waited for arrivals; arrivals with LayerEvents are waited for by the device alone. A chunk's logits are bitwise the
  // same whatever shares the batch as far as the device's dense products are (DeviceStream::Multiply). Errors:
  // kUnavailable: the device is lost; kResourceExhausted: the batch is beyond the limits and does not fit.
  // `device_pages`: the pages in device memory, in the layout of PagesOnDevice (gpu/kernels/step_data.h).
  // options.lora_variant does not matter. `graphs`: null, or graphs of earlier steps on the stream (step_graphs.h);
  // then batches that only decode are recorded and replayed. It must be used with this model alone, and changes no bit
  // as far as dense products are independent of the batch. `assist`: null, or the open step that has the segments of
  // adapters with a gate (DeviceLoraView::gate); then those are computed by the side that has their layers, and nothing
  // is recorded. REQUIRES: as Model::Forward; `layout` as the configuration says.
  Result<TimeNs> Forward(DeviceStream& stream, std::span<const DeviceSequenceChunk> chunks, const KvLayout& layout,
                         const PageArena& device_pages, const ForwardOptions& options, StepGraphs* graphs = nullptr,
                         AssistPool* assist = nullptr);
  // Copies the logits of the last Forward, [sum of logit_rows, vocab] in chunk order, for tests. Error: the device is
  // lost. REQUIRES: it scored no rows.
  Status CopyLogits(DeviceStream& stream, std::vector<float>& logits) const;

 private:
  Device& device_;
  ModelConfig config_;
  DeviceWeights weights_;
  std::unique_ptr<DeviceWorkspace> workspace_;
};

}  // namespace loramux
