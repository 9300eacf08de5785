// Chooses the steps to measure: drawn at random over everything that a batch of the server may contain.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/prng.h"

namespace loramux {

// The part of one sequence in a step.
struct PointSequence {
  std::int64_t tokens = 1;
  std::int64_t position = 0;  // position of the first token: the keys and values of all earlier positions are read
  int adapter = -1;           // index; -1: the base model
  bool sample = true;         // choose the next token
};

// kOwnAdapters: decode steps as CaraServe measures them, with a different adapter for each sequence and equal lengths.
enum class PointKind : std::uint8_t { kDecode, kPrefill, kMixed, kOwnAdapters };

// One step to measure.
struct StepPoint {
  PointKind kind = PointKind::kDecode;
  std::vector<PointSequence> sequences;  // those of the base model first; those of one adapter are adjacent
};

// The limits of a batch.
struct PointSpace {
  std::int64_t max_batch_tokens = 512, max_running = 256, max_positions = 1024;
  std::int64_t kv_pages = 0, page_tokens = 16;  // for keys and values of all sequences together
  std::vector<std::int64_t> ranks;              // ranks of the adapters, ascending; empty: no adapters
};

// Draws `count` points, with fixed shares of the kinds. Batch sizes, tokens and lengths are uniform over their orders
// of magnitude, so that small steps are covered as well as large ones. Deterministic for a state of `prng`.
std::vector<StepPoint> DrawPoints(const PointSpace& space, int count, Prng& prng);

// Returns the pages that the keys and values of the step's sequences occupy.
std::int64_t PagesOf(const StepPoint& point, std::int64_t page_tokens);

}  // namespace loramux
