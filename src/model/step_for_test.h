// A step that a test puts together, with adapters in the form of the operations that compute it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "step/step_batch.h"

namespace loramux {

template <typename Adapter>
struct StepForTest {
  StepBatch batch;
  std::vector<const Adapter*> adapters;  // by segment
  std::vector<const Adapter*> known;     // by slot

  // Adds a sequence. `adapter`: null for the base model.
  StepSequence& Add(std::span<const TokenId> tokens, std::int64_t position, std::span<const std::uint32_t> pages,
                    const Adapter* adapter, std::int64_t logit_rows, std::int64_t prompt_tokens = 0) {
    StepSequence& sequence = batch.Add({}, tokens, position, pages);
    sequence.prompt_tokens = prompt_tokens;
    sequence.logit_rows = static_cast<std::int32_t>(logit_rows);
    if (adapter == nullptr) return sequence;
    const auto slot = static_cast<std::uint32_t>(std::ranges::find(known, adapter) - known.begin());
    if (slot == known.size()) known.push_back(adapter);
    batch.UseAdapter(sequence, {.slot = slot});
    if (adapters.size() < batch.segments.size()) adapters.push_back(adapter);
    return sequence;
  }

  void Clear() {
    batch.Clear();
    adapters.clear();
  }
};

}  // namespace loramux
