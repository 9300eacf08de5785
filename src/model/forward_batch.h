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
  // max_position the keys of equal prefixes differ between prompts of different lengths (ModelConfig::TurnsAlike).
  std::int64_t rope_length = 0;
  // Tokens of the chunk whose logits are scored (ScoreRow) and then forgotten.
  std::int32_t first_scored = 0, scored_rows = 0;
};

// Adjacent rows that use one adapter.
template <typename Adapter>
struct AdapterRowsOf {
  const Adapter* adapter = nullptr;
  std::int64_t begin = 0, end = 0;
};

// Rows of logits that are computed together.
struct LogitBlock {
  // Most scored rows of a block: a row is a whole vocabulary, so a prompt of any length needs the memory of these.
  static constexpr std::int64_t kMaxScored = 64;

  std::int64_t first = 0, count = 0;                   // range of ForwardBatch::logit_rows
  std::int64_t first_adapter = 0, adapter_groups = 0;  // range of ForwardBatch::logit_adapters
};

// A batch as all operations see it: tokens are rows, chunk after chunk.
template <typename Adapter>
struct ForwardBatch {
  std::span<const SequenceChunkOf<Adapter>> chunks;
  std::vector<AdapterRowsOf<Adapter>> adapters;  // in rows of the batch
  // The rows that need logits: first those of SequenceChunkOf::logit_rows, then the scored ones.
  std::vector<std::int64_t> logit_rows;
  std::vector<AdapterRowsOf<Adapter>> logit_adapters;  // in rows of their block
  LogitBlock logits;                                   // the rows of SequenceChunkOf::logit_rows
  std::vector<LogitBlock> scored;                      // in the order of the scored rows
  std::int64_t num_rows = 0, num_logit_rows = 0;       // num_logit_rows: without the scored ones
  std::int64_t max_positions = 0;                      // most positions of a sequence, this batch included

  // Describes these chunks. Allocates only while batches grow. REQUIRES: chunks not empty; logit_rows <= tokens.size();
  // scored rows are tokens of their chunk.
  void Describe(std::span<const SequenceChunkOf<Adapter>> of);

  // The groups of a block of logits.
  std::span<const AdapterRowsOf<Adapter>> AdaptersOf(const LogitBlock& block) const {
    return std::span(logit_adapters)
        .subspan(static_cast<std::size_t>(block.first_adapter), static_cast<std::size_t>(block.adapter_groups));
  }
  // The rows of a block of logits, in rows of the batch.
  std::span<const std::int64_t> RowsOf(const LogitBlock& block) const {
    return std::span(logit_rows).subspan(static_cast<std::size_t>(block.first), static_cast<std::size_t>(block.count));
  }
  // The most rows of a block of logits.
  std::int64_t MostLogitRows() const { return std::max(num_logit_rows, scored.empty() ? 0 : scored.front().count); }

 private:
  void AddScored(const SequenceChunkOf<Adapter>& chunk, std::int64_t first_row);
  // Adds a row to the block. REQUIRES: the block is the last one.
  void AddTo(LogitBlock& block, const Adapter* adapter, std::int64_t row);
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
void ForwardBatch<Adapter>::AddTo(LogitBlock& block, const Adapter* adapter, std::int64_t row) {
  const std::int64_t at = block.count++;
  logit_rows.push_back(row);
  if (adapter == nullptr) return;
  const bool continues =
      block.adapter_groups > 0 && logit_adapters.back().adapter == adapter && logit_adapters.back().end == at;
  if (continues) {
    ++logit_adapters.back().end;
  } else {
    logit_adapters.push_back({adapter, at, at + 1});
    ++block.adapter_groups;
  }
}

template <typename Adapter>
void ForwardBatch<Adapter>::AddScored(const SequenceChunkOf<Adapter>& chunk, std::int64_t first_row) {
  for (std::int64_t i = 0; i < chunk.scored_rows; ++i) {
    if (scored.empty() || scored.back().count == LogitBlock::kMaxScored) {
      scored.push_back({.first = static_cast<std::int64_t>(logit_rows.size()),
                        .first_adapter = static_cast<std::int64_t>(logit_adapters.size())});
    }
    AddTo(scored.back(), chunk.adapter, first_row + chunk.first_scored + i);
  }
}

template <typename Adapter>
void ForwardBatch<Adapter>::Describe(std::span<const SequenceChunkOf<Adapter>> of) {
  chunks = of;
  adapters.clear();
  logit_adapters.clear();
  logit_rows.clear();
  scored.clear();
  logits = {};
  num_rows = max_positions = 0;
  for (const SequenceChunkOf<Adapter>& chunk : chunks) {
    const auto size = static_cast<std::int64_t>(chunk.tokens.size());
    CHECK_GT(size, 0);
    CHECK_GE(size, chunk.logit_rows);
    CHECK_GE(chunk.logit_rows, 0);
    CHECK_GE(size, chunk.first_scored + chunk.scored_rows);
    CHECK_GE(chunk.position, 0);
    Append(chunk.adapter, num_rows, size, adapters);
    num_rows += size;
    for (std::int64_t row = num_rows - chunk.logit_rows; row < num_rows; ++row) AddTo(logits, chunk.adapter, row);
    max_positions = std::max(max_positions, chunk.position + size);
  }
  num_logit_rows = logits.count;
  std::int64_t first_row = 0;
  for (const SequenceChunkOf<Adapter>& chunk : chunks) {
    AddScored(chunk, first_row);
    first_row += static_cast<std::int64_t>(chunk.tokens.size());
  }
}

}  // namespace loramux
