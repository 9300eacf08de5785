// The base model's weights in a device's memory: matrices row-major [outputs, inputs], vectors as float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "formats/dtype.h"
#include "formats/model_config.h"
#include "gpu/device.h"
#include "gpu/kernels/packed.h"
#include "memory/arena.h"
#include "model/model_tensors.h"
#include "model/model_weights.h"
#include "model/weights.h"
#include "quant/model_source.h"
#include "tensor/weight_format.h"

namespace loramux {

// A contiguous matrix in device memory: row-major floats, or the codes of a quantised form. Not owning.
class DeviceMatrix {
 public:
  DeviceMatrix() = default;
  // `dtype` is that of the product's input, also with a form.
  DeviceMatrix(const std::byte* data, std::int64_t n, std::int64_t k, DType dtype, const gpu::PackedForm& form = {})
      : data_(data), form_(form), n_(n), k_(k), dtype_(dtype) {}

  const std::byte* data() const { return data_; }
  std::int64_t n() const { return n_; }
  std::int64_t k() const { return k_; }
  DType dtype() const { return dtype_; }
  bool packed() const { return form_.format != WeightFormat::kF32; }
  const gpu::PackedForm& form() const { return form_; }
  WeightFormat format() const { return packed() ? form_.format : FormatOf(dtype_); }
  // The rows from `first` on. REQUIRES: if packed, `first` is a multiple of gpu::kPackedTile.
  DeviceMatrix Rows(std::int64_t first, std::int64_t rows) const;

 private:
  const std::byte* data_ = nullptr;
  gpu::PackedForm form_;
  std::int64_t n_ = 0, k_ = 0;
  DType dtype_ = DType::kF32;
};

// A float32 vector in device memory; null if there is none. Not owning.
struct DeviceVector {
  const float* data = nullptr;
};

// All weights, in one piece of device memory. Matrices of a layer's experts lie one after the other, and so do biases.
struct DeviceWeights : ModelWeightsOf<DeviceMatrix, DeviceVector> {
  DType dtype = DType::kF32;  // type of every matrix but the embedding, and of what quantised ones multiply
  std::unique_ptr<Arena> arena;
  std::vector<std::string> widened;  // names of tensors that the files have quantised, and the device in floats
};

// Reads the weights of an opened model directory into device memory. Checks and errors as PackModelWeights; and
// kResourceExhausted if they do not fit. Floats keep their stored type if all but the embedding have the same;
// otherwise they become float32, which holds all values exactly. Quantised matrices stay as they are where a device can
// keep them (StoredMatrix::kept) and all that share a product have one form; the others become floats of the type that
// the floats have, bf16 if there are none. `options` replace the formats. A router that is stored wider than the other
// matrices is rounded only if that changes no value. `progress` may be empty.
Result<DeviceWeights> UploadModelWeights(const ModelConfig& config, ModelSource& source, const WeightOptions& options,
                                         Device& device, const Progress& progress);
// What products of many rows widen quantised weights into; 0: there are none.
std::int64_t WidenedBytes(const DeviceWeights& weights);
// The same by arithmetic: weights without memory, and the bytes that UploadModelWeights would take for them.
struct PlannedWeights {
  DeviceWeights weights;
  std::int64_t bytes = 0;
};
PlannedWeights PlanModelWeights(const ModelConfig& config, const ModelTensors& tensors, const WeightOptions& options);

// Copies packed weights. Error: as above.
Result<DeviceWeights> UploadModelWeights(const ModelWeights& weights, Device& device);

}  // namespace loramux
