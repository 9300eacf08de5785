// One layer's adapters for a mixed batch, computed in three ways: counted on the emulated device, timed on the
// processor.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "lab/experiments/experiment.h"

namespace loramux {

// How the adapters of a batch are computed. Each way computes what the source calls so.
enum class LoraBatching : std::uint8_t {
  kEach,       // for each adapter and target by itself
  kByAdapter,  // for each adapter: q, k and v together, which share their input; and o
  kAtOnce,     // all adapters of the batch: q, k and v together; and o
};

// A layer with square q, k, v and o. The rows of the batch are divided evenly among the adapters.
struct LoraBatchShape {
  std::int64_t hidden = 0, rank = 0, adapters = 0, rows = 0;
  // Bytes of the adapters' 16-bit matrices.
  std::int64_t AdapterBytes() const { return adapters * 4 * 2 * rank * hidden * 2; }
};

// What the project's LoRA kernels do on the emulated device for one layer.
struct DeviceLoraCounts {
  std::int64_t launches = 0;
  std::int64_t adapter_bytes = 0, other_bytes = 0;  // loaded: of adapters; of activations, sums and lists of work
};
// Error: the device's memory, or a build without the emulated device.
Result<DeviceLoraCounts> CountLoraOnDevice(const LoraBatchShape& shape, LoraBatching batching);

// Seconds for one layer on the processor: the best of several runs, each of which finds its adapters in memory, not in
// the caches.
double SecondsOfLoraOnHost(const LoraBatchShape& shape, LoraBatching batching, int threads);

// Seconds to copy `bytes` to pieces of `piece_bytes` in arbitrary order on the processor: the best of several runs.
double SecondsOfCopy(std::int64_t bytes, std::int64_t piece_bytes);

// The experiment on what the source says of kernels and of paged loads.
Result<ExperimentResult> RunVllmKernels(ExperimentContext& context);

}  // namespace loramux
