// Executes a planned batch. A seam: CpuExecutor computes; ModeledExecutor and SimulatedExecutor only model the time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "adapter/residency.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/sampling.h"

namespace loramux {

// One sequence's part of a batch. Everything it points to stays unchanged until the batch's result has been polled.
struct ExecutorChunk {
  RequestId id;
  std::span<const TokenId> tokens;  // to compute, at positions [position, position + size)
  std::int64_t position = 0;
  const std::uint32_t* pages = nullptr;       // page table: indices into the device pool
  const AdapterResidency* adapter = nullptr;  // device-resident or arriving; null: the base model
  // Non-null while layers of the adapter, or of the keys and values before `position`, are still arriving; a layer may
  // be read only after it has arrived. If a transfer fails, the chunk's keys, values and token are garbage that the
  // engine discards.
  const LayerProgress* adapter_arrival = nullptr;
  const LayerProgress* kv_arrival = nullptr;
  bool sample = false;  // sample the token that follows the last one
  // Of the whole sequence, if `sample`:
  const SamplingParams* sampling = nullptr;
  SamplerContext context;
  std::int64_t prompt_tokens = 0;  // prompt length of the sequence (dynamic rope scaling depends on it)
};

// Copies a whole page of the device pool; both are page indices. The source page is full and unchanged until the
// batch's result has been polled. The destination belongs to one chunk alone. Positions after the ones the chunk takes
// over are overwritten before they are read.
struct PageCopy {
  std::uint32_t source = 0, destination = 0;
};

// One step's work.
struct ExecutorBatch {
  std::vector<PageCopy> copies;       // done before any computation; a destination occurs once and is never a source
  std::vector<ExecutorChunk> chunks;  // chunks of one adapter are adjacent, base model first
};

// The outcome of a batch.
struct ExecutorResult {
  std::vector<SampledToken> tokens;  // one per chunk with `sample`, in the order of the chunks
  TimeNs waited = 0;                 // time spent waiting for layers that had not arrived
};

// Called on the engine thread. At most one batch is in flight.
class Executor {
 public:
  virtual ~Executor() = default;
  // Starts a batch. `batch` must stay alive and unchanged until polled. REQUIRES: no batch in flight.
  virtual void Submit(const ExecutorBatch& batch) = 0;
  // Returns true once the batch is done and fills `result`, reusing its memory. Never blocks.
  virtual bool Poll(ExecutorResult& result) = 0;
};

}  // namespace loramux
