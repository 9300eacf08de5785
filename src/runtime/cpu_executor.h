// Runs batches on the CPU: one thread drives the forward pass, a pool of kernel threads computes it.
#pragma once

#include <functional>
#include <memory>

#include "engine/executor.h"
#include "kernels/kernel_context.h"
#include "memory/tier.h"
#include "model/model.h"
#include "runtime/assist_setup.h"

namespace loramux {

// Options of CpuExecutor.
struct CpuExecutorOptions {
  int threads = 0;  // 0: one thread per processor that the process may use
  Backend backend = Backend::kCpu;
  LoraVariant lora_variant = LoraVariant::kMbgmv;
  // The largest batch that will be submitted. Buffers are sized by it, so that no step allocates.
  std::int64_t max_batch_tokens = 512, max_running = 256, max_positions = 4096, max_rank = 64;
  std::int64_t max_drafted_tokens = 0;  // in a batch (StepBatch::AddDraft)
  AssistSetup assist;                   // only for an executor on a device (GpuExecutor)
  Collectives* group = nullptr;         // ranks that compute the model's other parts; it outlives the executor
};

// The real Executor of the engine: computes each step on the CPU, one after another.
class CpuExecutor final : public Executor {
 public:
  // Owns neither `model` nor the tiers' memory; both must outlive the executor. `layout` describes the pages of
  // memory.device. Adapters are computed from there, or in place from memory.host (AdapterSegment::in_host). Calls
  // `on_completion` on the executor's thread after each batch.
  CpuExecutor(CpuExecutorOptions options, Model* model, const KvLayout& layout, const TierMemory& memory,
              std::function<void()> on_completion);
  ~CpuExecutor() override;
  void Submit(StepBatch batch) override;
  bool Poll(StepResult& result) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace loramux
