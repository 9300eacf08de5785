// The check of adapters that were saved with a copy of the base model's output matrix.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "formats/adapter_config.h"
#include "model/device_model.h"
#include "model/model.h"
#include "tensor/weight_format.h"

namespace loramux {

// Reads rows [first, first + count) of the base model's output matrix [n, k] as float32. Thread-safe.
struct OutputMatrix {
  std::int64_t n = 0, k = 0;
  WeightFormat format = WeightFormat::kF32;  // in which the model keeps it
  std::function<Status(std::int64_t first, std::int64_t count, float* rows)> read;
};

// The matrix of a model, which must outlive it. Error of reads on a device: it is lost.
OutputMatrix OutputMatrixOf(const Model& model);
OutputMatrix OutputMatrixOf(const DeviceModel& model, Device& device);

// Rejects an adapter that was saved with a different output matrix than the model's. It was trained on another base and
// would give wrong answers. A quantised matrix must be the copy's within what quantising changes.
Status CheckBaseCopy(const OutputMatrix& matrix, const AdapterFile& file);

}  // namespace loramux
