// The rows of a step, as the forward pass and its operations see them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "step/step_batch.h"

namespace loramux {

// Adjacent rows that use one adapter. `Adapter`: the ops' own form of an adapter on the device.
template <typename Adapter>
struct AdapterRowsOf {
  const Adapter* adapter = nullptr;
  std::int64_t begin = 0, end = 0;
};

// Rows of logits that are computed together.
struct LogitBlock {
  // Most scored rows of a block: a row is a whole vocabulary, so a prompt of any length needs the memory of these.
  static constexpr std::int64_t kMaxScored = 64;

  std::int64_t first = 0, count = 0;                   // range of StepRows::logit_rows
  std::int64_t first_adapter = 0, adapter_groups = 0;  // range of StepRows::logit_adapters
};

// Which rows of a step use which adapter, and which need logits. Tokens are rows, sequence after sequence.
template <typename Adapter>
struct StepRows {
  const StepBatch* step = nullptr;
  std::vector<AdapterRowsOf<Adapter>> adapters;  // by segment of the step
  // The rows that need logits: first those of StepSequence::logit_rows, then the scored ones.
  std::vector<std::int64_t> logit_rows;
  std::vector<AdapterRowsOf<Adapter>> logit_adapters;  // in rows of their block
  LogitBlock logits;                                   // the rows of StepSequence::logit_rows
  std::vector<LogitBlock> scored;                      // in the order of the scored rows
  std::int64_t num_rows = 0, num_logit_rows = 0;       // num_logit_rows: without the scored ones
  std::int64_t max_positions = 0;                      // most positions of a sequence, this step included

  // Describes this step, which must outlive the description. `of_segments`: the adapter of each of its segments.
  // Allocates only while steps grow. REQUIRES: the step has sequences, each with tokens; logit_rows and scored rows are
  // tokens of their sequence.
  void Describe(const StepBatch& of, std::span<const Adapter* const> of_segments);

  // Null: the base model.
  const Adapter* AdapterOf(const StepSequence& sequence) const {
    return sequence.segment < 0 ? nullptr : adapters[static_cast<std::size_t>(sequence.segment)].adapter;
  }
  // The groups of a block of logits.
  std::span<const AdapterRowsOf<Adapter>> AdaptersOf(const LogitBlock& block) const {
    return std::span(logit_adapters)
        .subspan(static_cast<std::size_t>(block.first_adapter), static_cast<std::size_t>(block.adapter_groups));
  }
  // The rows of a block of logits, in rows of the step.
  std::span<const std::int64_t> RowsOf(const LogitBlock& block) const {
    return std::span(logit_rows).subspan(static_cast<std::size_t>(block.first), static_cast<std::size_t>(block.count));
  }
  // The most rows of a block of logits.
  std::int64_t MostLogitRows() const { return std::max(num_logit_rows, scored.empty() ? 0 : scored.front().count); }

 private:
  void AddScored(const StepSequence& sequence);
  // Adds a row to the block. REQUIRES: the block is the last one.
  void AddTo(LogitBlock& block, const Adapter* adapter, std::int64_t row);
};

template <typename Adapter>
void StepRows<Adapter>::AddTo(LogitBlock& block, const Adapter* adapter, std::int64_t row) {
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
void StepRows<Adapter>::AddScored(const StepSequence& sequence) {
  for (std::int64_t i = 0; i < std::int64_t{sequence.scores.size}; ++i) {
    if (scored.empty() || scored.back().count == LogitBlock::kMaxScored) {
      scored.push_back({.first = static_cast<std::int64_t>(logit_rows.size()),
                        .first_adapter = static_cast<std::int64_t>(logit_adapters.size())});
    }
    AddTo(scored.back(), AdapterOf(sequence), std::int64_t{sequence.tokens.first} + sequence.first_scored + i);
  }
}

template <typename Adapter>
void StepRows<Adapter>::Describe(const StepBatch& of, std::span<const Adapter* const> of_segments) {
  step = &of;
  adapters.clear();
  logit_adapters.clear();
  logit_rows.clear();
  scored.clear();
  logits = {};
  max_positions = 0;
  num_rows = static_cast<std::int64_t>(of.tokens.size());
  CHECK_EQ(of_segments.size(), of.segments.size());
  for (std::size_t i = 0; i < of.segments.size(); ++i) {
    const AdapterSegment& segment = of.segments[i];
    adapters.push_back({of_segments[i], segment.first_token, segment.first_token + segment.num_tokens});
  }
  for (const StepSequence& sequence : of.sequences) {
    const std::int64_t size = sequence.tokens.size, end = sequence.tokens.first + size;
    CHECK_GT(size, 0);
    CHECK_GE(size, sequence.logit_rows);
    CHECK_GE(sequence.logit_rows, 0);
    CHECK_GE(size, sequence.first_scored + std::int64_t{sequence.scores.size});
    CHECK_GE(sequence.position, 0);
    for (std::int64_t row = end - sequence.logit_rows; row < end; ++row) AddTo(logits, AdapterOf(sequence), row);
    max_positions = std::max(max_positions, sequence.position + size);
  }
  num_logit_rows = logits.count;
  for (const StepSequence& sequence : of.sequences) AddScored(sequence);
}

}  // namespace loramux
