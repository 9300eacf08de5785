// Dense products (DenseProduct of gpu/device.h) by cuBLASLt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "base/result.h"
#include "gpu/device.h"

namespace loramux::gpu {

// One for each device; thread-safe. The algorithm for a shape is chosen at its first use and kept.
//
// Batch-invariant: all m share the algorithm that was chosen for (dtype, n, k) at m = 64, one without split-K, so that
// each row is summed in the same order whatever else is in the batch.
class DenseProducts {
 public:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;  // what NVIDIA recommends for Hopper

  // Error (kUnavailable): cuBLASLt does not start.
  static Result<std::unique_ptr<DenseProducts>> Create(bool batch_invariant);
  ~DenseProducts();

  // REQUIRES: the calling thread's GPU is the device; m, n, k > 0; `workspace` has kWorkspaceBytes.
  Status Enqueue(const DenseProduct& product, void* workspace, cudaStream_t stream);

 private:
  struct Plan;
  // All that the choice of an algorithm may depend on: type, m, n, k, strides, alignments, epilogue.
  using Key = std::tuple<DType, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::uint32_t,
                         std::uint32_t, std::uint32_t, bool, bool>;

  DenseProducts(cublasLtHandle_t handle, bool batch_invariant);
  Result<const Plan*> PlanFor(const DenseProduct& product);
  Result<std::unique_ptr<Plan>> MakePlan(const DenseProduct& product, const Key& key);
  Result<cublasLtMatmulAlgo_t> InvariantAlgorithm(const DenseProduct& product, const Key& key);

  const cublasLtHandle_t handle_;
  const bool batch_invariant_;
  std::mutex mutex_;  // guards what follows
  std::map<Key, std::unique_ptr<Plan>> plans_;
  std::map<Key, cublasLtMatmulAlgo_t> invariant_;  // by keys with m = kInvariantRows
};

}  // namespace loramux::gpu
