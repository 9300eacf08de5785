// The base model on a device: row-major weights in device memory, and the forward pass over a mixed batch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "formats/model_config.h"
#include "gpu/device.h"
#include "model/device_limits.h"
#include "model/device_lora.h"
#include "model/device_weights.h"
#include "model/model.h"
#include "model/step_rows.h"
#include "step/step_batch.h"
#include "step/step_result.h"
#include "tensor/kv_layout.h"
#include "tensor/page_arena.h"

namespace loramux {

class AssistPool;
class DeviceWorkspace;
class StepGraphs;

// Where and how a device computes a step. Not owning.
struct DevicePlace {
  DeviceStream& stream;
  KvLayout layout;
  PageArena arena;  // the pages in device memory, in the layout of PagesOnDevice (gpu/kernels/step_data.h)
  // Null, or graphs of earlier steps on the stream (step_graphs.h); then steps that only decode are recorded and
  // replayed. They must be used with one model alone, and change no bit as far as dense products are independent of
  // the batch.
  StepGraphs* graphs = nullptr;
  // Null, or the open step that has the segments of adapters with a gate (DeviceLoraView::gate); then those are
  // computed by the side that has their layers, and nothing is recorded.
  AssistPool* assist = nullptr;
};

// A base model on a device: runs ForwardPass with GpuOps. Owns the weights and the workspace in device memory. Not
// thread-safe: one Forward at a time. The device outlives it.
class DeviceModel {
 public:
  // Takes over weights that lie on `device`. Load and Upload make them.
  DeviceModel(ModelConfig config, DeviceWeights weights, Device& device);
  ~DeviceModel();
  // Reads a Hugging Face directory into device memory. `progress` may be empty.
  // Errors: those of the files (as Model::Load), and kResourceExhausted if the weights do not fit.
  static Result<std::unique_ptr<DeviceModel>> Load(const std::filesystem::path& directory, Device& device,
                                                   const WeightOptions& options, const Progress& progress);
  // Copies a model of the CPU, for tests and benchmarks. Error (kResourceExhausted): it does not fit.
  static Result<std::unique_ptr<DeviceModel>> Upload(const Model& host, Device& device);

  // What a model takes of a device's memory, by arithmetic: with `tensors` of its files and batches within the limits.
  struct Fit {
    std::int64_t weights = 0, activations = 0;
    WeightFormat layers = WeightFormat::kF32;  // the format of the layers' last product
  };
  // Error: a device does not compute the model.
  static Result<Fit> FitOf(const ModelConfig& config, const ModelTensors& tensors, const WeightOptions& options,
                           const DeviceModelLimits& limits);

  const ModelConfig& config() const { return config_; }
  const DeviceWeights& weights() const { return weights_; }
  // The format of the layers' matrices, as far as one says it.
  WeightFormat format() const;
  // The type of the weights that are floats, and of the inputs of products.
  DType dtype() const { return weights_.dtype; }
  // Bytes of device memory.
  std::int64_t WeightBytes() const;
  std::int64_t WorkspaceBytes() const;

  // Takes memory for batches within the limits, so that Forward takes none. Larger batches still work while memory
  // lasts. Error (kResourceExhausted): says what was asked for, what is free, and which max_tokens would fit.
  Status Reserve(const DeviceModelLimits& limits);

  // Computes the step, as Model::Forward, and returns when the results are there. StepResult::waited is the time that
  // the host waited for arrivals; arrivals with LayerEvents are waited for by the device alone. A sequence's logits are
  // bitwise the same whatever shares the step as far as the device's dense products are (DeviceStream::Multiply).
  // Errors: kUnavailable: the device is lost; kResourceExhausted: the step is beyond the limits and does not fit.
  Status Forward(const DevicePlace& place, const StepBatch& step, std::span<const DeviceLoraView* const> adapters,
                 StepResult& result);
  // Copies the logits of the last Forward, [sum of logit_rows, vocab] in the order of the sequences, for tests. Error:
  // the device is lost. REQUIRES: it scored no rows.
  Status CopyLogits(DeviceStream& stream, std::vector<float>& logits) const;

 private:
  Device& device_;
  ModelConfig config_;
  DeviceWeights weights_;
  std::unique_ptr<DeviceWorkspace> workspace_;
};

}  // namespace loramux
