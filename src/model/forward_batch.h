// A batch as the forward pass and its operations see it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/ids.h"

namespace loramux {

// One sequence's part of a batch. Not owning. `Adapter`: the ops' own form of an adapter on the device.
template <typename Adapter>
struct SequenceChunkOf {
  std::span<const TokenId> tokens;  // to compute, at positions [position, position + size)
  std::int64_t position = 0;
  const std::uint32_t* pages = nullptr;  // page table covering all positions up to the last of this chunk
  const Adapter* adapter = nullptr;      // null: the base model. Chunks of one adapter should be adjacent.
  // How many of the chunk's last tokens need logits: 0 (inner chunk of a prompt), 1, or more.
  std::int32_t logit_rows = 0;
  // The length of the request's whole prompt. Used only by dynamic rope scaling: the token at position p is rotated as
  // in a sequence of max(rope_length, p + 1) tokens. That equals transformers' result for a prompt in one pass followed
  // by single tokens. It depends neither on chunking nor on a recomputation after preemption. As a consequence, beyond
  // max_position the keys of equal prefixes differ between prompts of different lengths (UsesRopeLength).
  std::int64_t rope_length = 0;
};

// Adjacent rows that use one adapter.
template <typename Adapter>
struct AdapterRowsOf {
  const Adapter* adapter = nullptr;
  std::int64_t begin = 0, end = 0;
};

// A batch as all operations see it: tokens are rows, chunk after chunk.
template <typename Adapter>
struct ForwardBatch {
  std::span<const SequenceChunkOf<Adapter>> chunks;
  std::vector<AdapterRowsOf<Adapter>> adapters;        // in rows of the batch
  std::vector<AdapterRowsOf<Adapter>> logit_adapters;  // in rows of the logits
  std::int64_t num_rows = 0, num_logit_rows = 0;
  std::int64_t max_positions = 0;  // of its sequences, this batch included

  // Describes these chunks. Allocates only while batches grow. REQUIRES: chunks not empty, logit_rows <= tokens.size().
  void Describe(std::span<const SequenceChunkOf<Adapter>> of);

 private:
  // Adds rows to the last group if they continue it, else starts a group.
  static void Append(const Adapter* adapter, std::int64_t begin, std::int64_t count,
                     std::vector<AdapterRowsOf<Adapter>>& groups);
};

template <typename Adapter>
void ForwardBatch<Adapter>::Append(const Adapter* adapter, std::int64_t begin, std::int64_t count,
                                   std::vector<AdapterRowsOf<Adapter>>& groups) {
  if (adapter == nullptr || count == 0) return;
  if (!groups.empty() && groups.back().adapter == adapter && groups.back().end == begin) {
    groups.back().end += count;
  } else {
    groups.push_back({adapter, begin, begin + count});
  }
}

template <typename Adapter>
void ForwardBatch<Adapter>::Describe(std::span<const SequenceChunkOf<Adapter>> of) {
  chunks = of;
  adapters.clear();
  logit_adapters.clear();
  num_rows = num_logit_rows = max_positions = 0;
  for (const SequenceChunkOf<Adapter>& chunk : chunks) {
    const auto size = static_cast<std::int64_t>(chunk.tokens.size());
    CHECK_GT(size, 0);
    CHECK_GE(size, chunk.logit_rows);
    CHECK_GE(chunk.logit_rows, 0);
    CHECK_GE(chunk.position, 0);
    Append(chunk.adapter, num_rows, size, adapters);
    Append(chunk.adapter, num_logit_rows, chunk.logit_rows, logit_adapters);
    num_rows += size;
    num_logit_rows += chunk.logit_rows;
    max_positions = std::max(max_positions, chunk.position + size);
  }
}

}  // namespace loramux
