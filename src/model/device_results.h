// From logits in device memory to tokens and scores. Rows that are plainly greedy are decided on the device; the
// processor does the others with the sampler of the CPU, so that both give the same tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/sample_batch.h"
#include "base/sampling.h"
#include "formats/model_config.h"
#include "gpu/device.h"
#include "kernels/thread_pool.h"
#include "memory/arena.h"
#include "model/gpu_rows.h"
#include "model/sampler.h"
#include "model/step_upload.h"

namespace loramux {

// Reads the results of one step after the other. Not thread-safe. Failures of the device are kept until Finish.
class DeviceResults {
 public:
  // Rows of logits that are copied to the host at once.
  static constexpr std::int64_t kHostRows = 64;

  // Takes no memory yet. The device and the configuration outlive it.
  DeviceResults(Device& device, const ModelConfig& config);

  // Makes room for blocks of up to `logit_rows` rows, and `threads` threads. Error: no pinned memory.
  Status Reserve(std::int64_t logit_rows, int threads);

  // Samples the rows of `logits`. What the device decides is there after Finish; if `now`, at once, because the logits
  // will not stay.
  void Sample(DeviceStream& stream, GpuRows logits, const StepOnDevice& step, const SampleBatch& samples, bool now,
              std::vector<SampledToken>& tokens);
  // Scores the rows of `logits` and appends the results.
  void Score(DeviceStream& stream, GpuRows logits, std::span<const ScoreRow> rows, std::vector<ScoredToken>& scores);
  // Copies the first rows of `logits`, without the ends of their strides. Error: the device is lost.
  Status CopyLogits(DeviceStream& stream, GpuRows logits, std::int64_t rows, std::vector<float>& out);
  // Waits for the stream and completes Sample. Error: the device is lost.
  Status Finish(DeviceStream& stream);

 private:
  // Calls `use(row, its logits, thread)` for each of these rows, on all threads.
  using UseRow = std::function<void(std::int64_t row, std::span<const float> logits, std::size_t thread)>;
  void ForRows(DeviceStream& stream, GpuRows logits, std::span<const std::int32_t> rows, const UseRow& use);
  void SampleOnHost(DeviceStream& stream, std::span<const std::int32_t> rows);
  void CompleteGreedy(DeviceStream& stream);
  bool Synchronize(DeviceStream& stream);

  Device& device_;
  const ModelConfig& config_;
  std::unique_ptr<ThreadPool> threads_;
  std::vector<SamplerScratch> scratch_;   // one per thread
  std::vector<SamplingParams> sampling_;  // one per thread
  std::unique_ptr<Arena> host_;           // rows of logits
  Status status_ = Ok{};
  // Of the step's Sample.
  GpuRows logits_;
  const SampleBatch* samples_ = nullptr;
  std::vector<SampledToken>* tokens_ = nullptr;
  const std::int32_t* sampled_ = nullptr;  // in host memory, by row
  std::vector<std::int32_t> greedy_, others_, rows_;
};

}  // namespace loramux
