// Which steps are measured: drawn at random over everything that the server may put into a batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/prng.h"

namespace loramux {

// One sequence's part of a step.
struct PointSequence {
  std::int64_t tokens = 1;
  std::int64_t position = 0;  // of the first of them: keys and values of all positions before are read
  int adapter = -1;           // index; -1: the base model
  bool sample = true;         // its next token is chosen
};

// kOwnAdapters: decode steps as in CaraServe's measurements: each sequence with another adapter, all at one length.
enum class PointKind : std::uint8_t { kDecode, kPrefill, kMixed, kOwnAdapters };

struct StepPoint {
  PointKind kind = PointKind::kDecode;
  std::vector<PointSequence> sequences;  // the base model's first, those of one adapter adjacent
};

// What a batch may hold.
struct PointSpace {
  std::int64_t max_batch_tokens = 512, max_running = 256, max_positions = 1024;
  std::int64_t kv_pages = 0, page_tokens = 16;  // of keys and values, all sequences together
  std::vector<std::int64_t> ranks;              // of the adapters, ascending; empty: none
};

// `count` points, the kinds in fixed shares. Batch sizes, tokens and lengths are drawn evenly over their orders of
// magnitude, so that small steps are as well covered as large ones. Deterministic in `prng`.
std::vector<StepPoint> DrawPoints(const PointSpace& space, int count, Prng& prng);

// The pages of keys and values that a step's sequences take together.
std::int64_t PagesOf(const StepPoint& point, std::int64_t page_tokens);

}  // namespace loramux
