// The batches of one executor: their memory is used again, and adapters are registered when they are first used.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "residency/adapter_residency.h"
#include "step/step_batch.h"

namespace loramux {

// Serves one executor, because it remembers which adapters that executor knows. Every batch that it makes must be
// submitted, in order. Not thread-safe. Allocates only while batches grow.
class StepBatchBuilder {
 public:
  // `contents`: Executor::reads_contents.
  explicit StepBatchBuilder(bool contents = true) : contents_(contents) {}

  // The batch that is being filled. Its sequences of one adapter come one after another.
  StepBatch& batch() { return batch_; }
  // Adds a sequence to it: StepBatch::Add, or AddBare without contents.
  StepSequence& Add(RequestId id, std::span<const TokenId> tokens, std::int64_t position,
                    std::span<const std::uint32_t> pages) {
    return contents_ ? batch_.Add(id, tokens, position, pages) : batch_.AddBare(id, tokens.size(), position);
  }
  // The last sequence of the batch also computes a draft (StepBatch::AddDraft).
  void AddDraft(StepSequence& sequence, std::span<const TokenId> draft) { batch_.AddDraft(sequence, draft, contents_); }
  // The last sequence of the batch uses an adapter, which is on the device or arriving. Returns its segment.
  AdapterSegment& UseAdapter(StepSequence& sequence, const AdapterResidency& adapter);
  // Hands out the batch and begins the next one.
  StepBatch Take();
  // Gives back a batch that was computed: its memory serves a later batch. Lets go of the adapters that it placed.
  void Recycle(StepBatch&& used);

 private:
  void Place(const AdapterResidency& adapter);

  bool contents_;
  StepBatch batch_, spare_;
  std::vector<std::uint64_t> placed_;  // by slot: the load that the executor knows; 0: none
};

}  // namespace loramux
