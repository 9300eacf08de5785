// Runs a planned batch. A seam: CpuExecutor computes, ModeledExecutor only takes time (simulation, planning
// benchmarks).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "adapter/residency.h"
#include "base/clock.h"
#include "base/ids.h"
#include "model/sampler.h"

namespace loramux {

// One sequence's part of a batch. What it points to stays unchanged until the batch's result was polled.
struct ExecutorChunk {
  RequestId id;
  std::span<const TokenId> tokens;  // to compute, at positions [position, position + size)
  std::int64_t position = 0;
  const std::uint32_t* pages = nullptr;       // page table of the device pool
  const AdapterResidency* adapter = nullptr;  // device-resident or arriving; null: the base model
  // Where layers of the adapter, or of the keys and values before `position`, are still arriving: each may be read only
  // when it is there. If one fails, the chunk's keys, values and token are garbage that the engine throws away.
  const LayerProgress* adapter_arrival = nullptr;
  const LayerProgress* kv_arrival = nullptr;
  bool sample = false;  // choose the token that follows the last one
  // Of the whole sequence, if `sample`:
  const SamplingParams* sampling = nullptr;
  SamplerContext context;
  std::int64_t prompt_tokens = 0;  // of the sequence (dynamic rope scaling depends on it)
};

// A whole page of the device pool, by index. The source is full and stays as it is until the batch's result was polled;
// the destination is one chunk's own. Positions behind those that the chunk takes over are overwritten before they are
// read.
struct PageCopy {
  std::uint32_t source = 0, destination = 0;
};

struct ExecutorBatch {
  std::vector<PageCopy> copies;       // before anything is computed; no destination twice, or as a source
  std::vector<ExecutorChunk> chunks;  // chunks of one adapter adjacent, base model first
};

struct ExecutorResult {
  std::vector<SampledToken> tokens;  // of the chunks with `sample`, in order
  TimeNs waited = 0;                 // for layers that had not arrived
};

// Called by the engine thread. At most one batch in flight.
class Executor {
 public:
  virtual ~Executor() = default;
  // REQUIRES: no batch in flight. `batch` must stay alive until polled.
  virtual void Submit(const ExecutorBatch& batch) = 0;
  // True once the batch is done: fills `result` (its memory is used again).
  virtual bool Poll(ExecutorResult& result) = 0;
};

}  // namespace loramux
