// From logits in device memory to tokens and scores. The device decides (gpu/kernels/sampling.h); the few rows that it
// does not serve go to the sampler of the CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "formats/model_config.h"
#include "gpu/device.h"
#include "gpu/kernels/sampling.h"
#include "kernels/thread_pool.h"
#include "memory/arena.h"
#include "model/gpu_rows.h"
#include "model/mirrored_block.h"
#include "model/sampler.h"
#include "model/step_rows.h"
#include "model/step_upload.h"
#include "step/step_batch.h"
#include "step/step_result.h"

namespace loramux {

// What the launches that sample a step depend on.
struct SampleRoom {
  enum class Way : std::uint8_t {
    kNothing,
    kGreedy,  // all rows ask for the first of the largest logits alone
    kKernel,  // gpu::SampleRows does what it serves, and the host the rest
  };
  Way way = Way::kNothing;
  // Whether the host has no part in it: neither masks of grammars to wait for nor rows of its own.
  bool by_device_alone = true;
  std::size_t rows = 0, biases = 0, tokens = 0;  // numbers that the arrays have room for
  auto operator<=>(const SampleRoom&) const = default;
};

// Reads the results of one step after the other. Not thread-safe. Failures of the device are kept until Finish.
class DeviceResults {
 public:
  // Rows of logits that are copied to the host at once.
  static constexpr std::int64_t kHostRows = 64;

  // Takes no memory yet. The device and the configuration outlive it.
  DeviceResults(Device& device, const ModelConfig& config);

  // Makes room for blocks of up to `logit_rows` rows, and `threads` threads. Error: no memory.
  Status Reserve(std::int64_t logit_rows, int threads);
  // Bytes of device memory that Reserve takes.
  static std::int64_t BytesFor(const ModelConfig& config, std::int64_t logit_rows);
  std::int64_t device_bytes() const { return block_.bytes(); }
  // Makes room for what a step samples and scores, and decides how. The tokens and scores go to `result`. `room`: 0, or
  // the rows that the launches cover, of which there may be fewer; the other arrays then have room for a power of two.
  // Error: no memory. REQUIRES: earlier work is done; no row is scored if there is a room.
  Status Prepare(const StepBatch& step, StepResult& result, std::int64_t room);
  // How Sample will go. Equal rooms, and an equal generation, mean equal launches if the device does all of it.
  const SampleRoom& room() const { return room_; }
  // How often the memory has changed.
  std::uint64_t generation() const { return block_.generation(); }
  // Enqueues the copy of what Sample's launches read, as far as it is known.
  void Upload(DeviceStream& stream) const;

  // Samples the rows of `logits`, whose number in device memory is `step`'s first block. The tokens are there after
  // Finish. Waits for the masks of grammars. If the device does all of it, this only enqueues, and may be recorded.
  void Sample(DeviceStream& stream, GpuRows logits, const StepOnDevice& step);
  // Scores the rows of `logits` and appends the results, which are there after Finish.
  void Score(DeviceStream& stream, GpuRows logits, std::span<const ScoreRow> rows);
  // Copies the first rows of `logits`, without the ends of their strides. Error: the device is lost.
  Status CopyLogits(DeviceStream& stream, GpuRows logits, std::int64_t rows, std::vector<float>& out);
  // Waits for the stream and completes Sample and Score. Error: the device is lost.
  Status Finish(DeviceStream& stream);

 private:
  // What Score left for Finish.
  struct PendingScores {
    std::span<const ScoreRow> rows;
    StepPlace<gpu::SampledOnDevice> results;
    std::size_t first = 0;  // index of the first score in the vector
  };
  // Calls `use(row, its logits, thread)` for each of these rows, on all threads.
  using UseRow = std::function<void(std::int64_t row, std::span<const float> logits, std::size_t thread)>;

  void ForRows(DeviceStream& stream, GpuRows logits, std::span<const std::int32_t> rows, const UseRow& use);
  void SampleOnHost(DeviceStream& stream, std::span<const std::int32_t> rows);
  void SampleGreedily(DeviceStream& stream, const StepOnDevice& step);
  void SampleOnDevice(DeviceStream& stream);
  SampleRoom RoomFor(const SampleBatch& samples, bool scores, std::int64_t rows) const;
  void WriteInputs();
  StepPlace<std::uint32_t> WriteMasks();
  void CompleteSamples(DeviceStream& stream);
  void CompleteGreedy(DeviceStream& stream);
  bool Synchronize(DeviceStream& stream);
  static std::int64_t MaskWords(const ModelConfig& config) { return (config.vocab_size + 31) / 32; }
  std::int64_t MaskWords() const { return MaskWords(config_); }

  Device& device_;
  const ModelConfig& config_;
  std::unique_ptr<ThreadPool> threads_;
  std::vector<SamplerScratch> scratch_;  // one per thread
  std::unique_ptr<Arena> host_;          // rows of logits
  MirroredBlock block_;
  Status status_ = Ok{};
  // What belongs to the present step.
  GpuRows logits_;
  SampleRoom room_;
  const SampleBatch* samples_ = nullptr;
  StepResult* result_ = nullptr;
  StepPlace<std::int32_t> greedy_;  // the tokens, if all rows are plainly greedy
  // What gpu::SampleRows reads, one after the other from the start of the block, and what it gives.
  StepPlace<std::int32_t> count_;
  StepPlace<gpu::DeviceSampleRow> sample_rows_;
  StepPlace<gpu::TokenBias> biases_;
  StepPlace<std::int32_t> sample_tokens_;
  std::size_t input_bytes_ = 0;
  StepPlace<gpu::SampledOnDevice> sampled_;
  std::vector<PendingScores> pending_scores_;
  std::vector<std::int32_t> served_, others_, rows_;
};

}  // namespace loramux
