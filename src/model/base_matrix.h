// The base model's matrices as rows of float32, wherever the model computes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "formats/adapter_config.h"
#include "model/device_model.h"
#include "model/model.h"
#include "tensor/weight_format.h"

namespace loramux {

using MatrixDigest = std::array<unsigned char, 16>;

// Reads rows [first, first + count) of a matrix of the base model, [n, k], as float32. Thread-safe.
struct BaseMatrix {
  std::int64_t n = 0, k = 0;
  WeightFormat format = WeightFormat::kF32;  // in which the model keeps it
  std::function<Status(std::int64_t first, std::int64_t count, float* rows)> read;
  // A digest of what they are read from as it lies in memory, which is faster: rows of the same digest are the same.
  // The XXH3 can be forged, but a base model is the operator's.
  std::function<Result<MatrixDigest>(std::int64_t first, std::int64_t count)> digest;
};

// A linear layer as the model computes it: quantised weights are what they stand for.
struct BaseLinear {
  BaseMatrix weight;
  std::vector<float> bias;  // empty: none
};

// The matrices that adapters are compared with or depend on. With tied weights output and embedding are the same.
struct BaseMatrices {
  BaseMatrix output, embedding;
  std::function<Result<BaseLinear>(std::int64_t layer, LoraTarget target)> linear;  // thread-safe
};

// Those of a model, which must outlive them. Error of reads on a device: it is lost.
BaseMatrices BaseMatricesOf(const Model& model);
BaseMatrices BaseMatricesOf(const DeviceModel& model, Device& device);

}  // namespace loramux
