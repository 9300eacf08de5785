// The check of adapters that were saved with copies of the base model's output matrix or embedding.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "formats/adapter_config.h"
#include "model/device_model.h"
#include "model/model.h"
#include "tensor/weight_format.h"

namespace loramux {

// Reads rows [first, first + count) of a matrix of the base model, [n, k], as float32. Thread-safe.
struct BaseMatrix {
  std::int64_t n = 0, k = 0;
  WeightFormat format = WeightFormat::kF32;  // in which the model keeps it
  std::function<Status(std::int64_t first, std::int64_t count, float* rows)> read;
};

// The matrices of which adapters may hold copies. With tied weights both are the same.
struct BaseMatrices {
  BaseMatrix output, embedding;
};

// Those of a model, which must outlive them. Error of reads on a device: it is lost.
BaseMatrices BaseMatricesOf(const Model& model);
BaseMatrices BaseMatricesOf(const DeviceModel& model, Device& device);

// Rejects an adapter that was saved with another output matrix or embedding than the model's. It was trained on another
// base, or changed the matrix itself, and would give wrong answers. A quantised matrix must be the copy's within what
// quantising changes.
Status CheckBaseCopies(const BaseMatrices& matrices, const AdapterFile& file);

}  // namespace loramux
