// Runs batches on the CPU: one thread that owns the forward pass, and a pool of kernel threads.
#pragma once

#include <functional>
#include <memory>

#include "engine/executor.h"
#include "kernels/kernel_context.h"
#include "memory/page_pool.h"
#include "model/model.h"

namespace loramux {

struct CpuExecutorOptions {
  int threads = 0;  // 0: one per processor that the process may use
  Backend backend = Backend::kCpu;
  LoraVariant lora_variant = LoraVariant::kMbgmv;
  // The largest batch that will come, so that no step allocates.
  std::int64_t max_batch_tokens = 512, max_running = 256, max_positions = 4096, max_rank = 64;
};

class CpuExecutor final : public Executor {
 public:
  // Does not own model and pool. `on_completion` is called on the executor's thread after each batch.
  CpuExecutor(CpuExecutorOptions options, Model* model, const KvLayout& layout, PagePool* device,
              std::function<void()> on_completion);
  ~CpuExecutor() override;
  void Submit(const ExecutorBatch& batch) override;
  bool Poll(ExecutorResult& result) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Processors that this process may run on.
int AvailableProcessors();

}  // namespace loramux
