// A step of the engine in the terms of the forward pass, the same for every executor.
#pragma once

#include <cstdint>

#include "engine/executor.h"
#include "model/model.h"

namespace loramux {

// One sequence's part of the step, with the executor's form of its adapter (null: the base model). It refers to
// `batch`.
template <typename Adapter>
SequenceChunkOf<Adapter> ChunkOf(const StepBatch& batch, const StepSequence& sequence, const Adapter* adapter) {
  SequenceChunkOf<Adapter> chunk;
  chunk.tokens = batch.TokensOf(sequence);
  chunk.position = sequence.position;
  chunk.pages = batch.PagesOf(sequence).data();
  chunk.adapter = adapter;
  chunk.logit_rows = sequence.sample < 0 ? 0 : 1;
  chunk.first_scored = sequence.first_scored;
  chunk.scored_rows = static_cast<std::int32_t>(sequence.scores.size);
  chunk.rope_length = sequence.prompt_tokens;
  return chunk;
}

// What the step waits for, samples, scores and pools, and where the results go. It refers to both.
inline ForwardOptions ForwardOptionsOf(const StepBatch& batch, StepResult& result) {
  return {.arrivals = batch.arrivals,
          .samples = &batch.samples,
          .tokens = &result.tokens,
          .score_rows = batch.scores,
          .scores = &result.scores,
          .pools = &batch.pools,
          .pooled = &result.pooled};
}

}  // namespace loramux
