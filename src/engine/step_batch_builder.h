// Makes StepBatches: flattens what the engine knows of its sequences, and registers adapters when they are first used.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "adapter/residency.h"
#include "base/ids.h"
#include "step/sampling.h"
#include "step/step_batch.h"

namespace loramux {

// One sequence's part of a step. Not owning; valid until StepBatchBuilder::Add returns.
struct SequencePart {
  RequestId id;
  std::span<const TokenId> tokens;  // to compute, at positions [position, position + size)
  std::int64_t position = 0;
  std::span<const std::uint32_t> pages;       // page table; covers all these positions, and may be longer
  std::int64_t page_tokens = 1;               // positions a page
  std::int64_t state_pages = 0;               // the first ones of `pages`, which hold no positions
  const AdapterResidency* adapter = nullptr;  // device-resident or arriving; null: the base model
  std::shared_ptr<const LayerProgress> adapter_arrival, kv_arrival;  // null: nothing is arriving
  bool in_host = false;                                              // as AdapterSegment::in_host
  std::shared_ptr<const LayerProgress> to_device;                    // as AdapterSegment::to_device
  const SamplingParams* sampling = nullptr;                          // null: no token is sampled
  SamplerContext context;
  std::shared_ptr<TokenConstraint> constraint;  // null: any token may be sampled
  std::int64_t prompt_tokens = 0;
  // Prompt tokens to score: the first follows token `first_scored` of `tokens`. With `top_logprobs` alternatives.
  std::span<const TokenId> scored;
  std::int32_t first_scored = 0, top_logprobs = 0;
  // Tokens to pool: `pooled` of them, from the first_pooled-th of `tokens` on. `pool_sum` is the sum so far; empty:
  // zero.
  std::int64_t first_pooled = 0, pooled = 0;
  std::span<const double> pool_sum;
};

// Serves one executor, because it remembers which adapters that executor knows. Every batch that it makes must be
// submitted, in order. Not thread-safe. Allocates only while batches grow.
class StepBatchBuilder {
 public:
  // Adds to the batch. REQUIRES (Add): sequences of one adapter come one after another.
  void Copy(PageCopy copy) { batch_.copies.push_back(copy); }
  void Add(const SequencePart& part);
  // Hands out the batch and begins the next one.
  StepBatch Take();
  // Gives back a batch that was computed: its memory serves a later batch. Lets go of the adapters that it placed.
  void Recycle(StepBatch&& used);

 private:
  std::int32_t SegmentOf(const SequencePart& part, std::int32_t first_token);
  std::int32_t ArrivalOf(const std::shared_ptr<const LayerProgress>& progress);
  void Place(const AdapterResidency& adapter);

  StepBatch batch_, spare_;
  std::vector<std::uint64_t> placed_;  // by slot: the load that the executor knows; 0: none
};

}  // namespace loramux
