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
  // `scales`: null, or of MXFP4 (gpu::ExpertMatMulArguments); `dtype` is then that of the product's input.
  DeviceMatrix(const std::byte* data, std::int64_t n, std::int64_t k, DType dtype, const std::uint8_t* scales = nullptr)
      : data_(data), scales_(scales), n_(n), k_(k), dtype_(dtype) {}

  const std::byte* data() const { return data_; }
  std::int64_t n() const { return n_; }
  std::int64_t k() const { return k_; }
  DType dtype() const { return dtype_; }
  const std::uint8_t* scales() const { return scales_; }
  // The rows from `first` on. REQUIRES: a multiple of whole bytes.
  DeviceMatrix Rows(std::int64_t first, std::int64_t rows) const;

 private:
  const std::byte* data_ = nullptr;
  const std::uint8_t* scales_ = nullptr;
  std::int64_t n_ = 0, k_ = 0;
  DType dtype_ = DType::kF32;
};

// A float32 vector in device memory; null if there is none. Not owning.
struct DeviceVector {
  const float* data = nullptr;
};

// All weights, in one piece of device memory. Matrices of a layer's experts lie one after the other, and so do biases.
struct DeviceWeights : ModelWeightsOf<DeviceMatrix, DeviceVector> {
  DType dtype = DType::kF32;  // type of every matrix but the embedding
  std::unique_ptr<Arena> arena;
};

// Reads the weights of an opened model directory into device memory. Checks and errors as PackModelWeights; and
// kResourceExhausted if they do not fit. Matrices keep their stored type if all but the embedding have the same;
// otherwise they become float32, which holds all values exactly. Quantised ones become bf16, but experts in
// MXFP4 stay as they are. A router that is stored wider than the other matrices is rounded only if that changes no
// value. `progress` may be empty.
Result<DeviceWeights> UploadModelWeights(const ModelConfig& config, ModelSource& source, Device& device,
                                         const Progress& progress);

// Copies packed weights. Error: as above.
Result<DeviceWeights> UploadModelWeights(const ModelWeights& weights, Device& device);

}  // namespace loramux
