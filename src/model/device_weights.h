// The base model's weights in a device's memory: matrices row-major [outputs, inputs], vectors as float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "formats/dtype.h"
#include "formats/model_config.h"
#include "gpu/device.h"
#include "memory/arena.h"
#include "model/model_weights.h"
#include "model/weights.h"
#include "quant/model_source.h"

namespace loramux {

// A contiguous row-major matrix in device memory. Not owning.
class DeviceMatrix {
 public:
  DeviceMatrix() = default;
  DeviceMatrix(const std::byte* data, std::int64_t n, std::int64_t k, DType dtype)
      : data_(data), n_(n), k_(k), dtype_(dtype) {}

  const std::byte* data() const { return data_; }
  std::int64_t n() const { return n_; }
  std::int64_t k() const { return k_; }
  DType dtype() const { return dtype_; }

 private:
  const std::byte* data_ = nullptr;
  std::int64_t n_ = 0, k_ = 0;
  DType dtype_ = DType::kF32;
};

// A float32 vector in device memory; null if there is none. Not owning.
struct DeviceVector {
  const float* data = nullptr;
};

// All weights, in one piece of device memory.
struct DeviceWeights : ModelWeightsOf<DeviceMatrix, DeviceVector> {
  DType dtype = DType::kF32;  // of every matrix but the embedding
  std::unique_ptr<Arena> arena;
};

// Reads the weights of an opened model directory into device memory. Checks and errors as PackModelWeights; and
// kResourceExhausted if they do not fit. Matrices keep their stored type if all but the embedding have the same;
// otherwise they become float32, which holds all values exactly. Quantised ones become bf16. `progress` may be empty.
Result<DeviceWeights> UploadModelWeights(const ModelConfig& config, ModelSource& source, Device& device,
                                         const Progress& progress);

// Copies packed weights. Error: as above.
Result<DeviceWeights> UploadModelWeights(const ModelWeights& weights, Device& device);

}  // namespace loramux
