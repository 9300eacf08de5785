// Packs matrices for the kernels from whatever a model stores.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

#include "kernels/matmul.h"
#include "kernels/thread_pool.h"
#include "model/model_tensors.h"
#include "model/weights.h"
#include "tensor/weight_format.h"

namespace loramux {

// Packs on all processors, and reports progress. Not thread-safe.
class Packer {
 public:
  // `total`: the bytes in the files of all that will be packed. `progress` may be empty; it outlives the packer.
  Packer(const Progress& progress, std::int64_t total)
      : progress_(progress), total_(total), pool_(AvailableProcessors()) {}

  // Stacks the weights by output rows, in their own formats or in `format`. A matrix that lies in its file as the
  // kernels need it is used there.
  PackedMatrix Matrix(std::initializer_list<LinearTensors> linears, std::optional<WeightFormat> format);
  // Counts bytes of the files as done.
  void Report(std::int64_t bytes);

 private:
  void Pack(const StoredMatrix& from, std::int64_t first_row, const PackedMatrix::Part& part, PackedMatrix& matrix);

  const Progress& progress_;
  std::int64_t done_ = 0;
  const std::int64_t total_;
  ThreadPool pool_;
};

}  // namespace loramux
