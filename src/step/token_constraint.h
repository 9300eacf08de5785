// Constrained decoding as the engine and the sampler see it: which tokens may follow in one sequence.
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/result.h"

namespace loramux {

// Follows one sequence. Advance is called for each token that goes on, so a preempted sequence needs no repair: by one
// thread of the executor for the drafted tokens that a step accepts (SampleWithDraft), by the engine for the last token
// of the step. Between two calls, one thread of the executor calls Allowed.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Takes the sequence's next token and begins, on another thread, to find out which tokens may follow. Does not wait.
  // REQUIRES: Allowed has returned since the last call.
  virtual void Advance(TokenId token) = 0;
  // Returns one bit for each token id, the lowest id in the lowest bit: whether it may follow. Ids behind the last bit
  // may not. Waits until that is known, or computes it on the calling thread. Valid until the next Advance. Empty:
  // see failure().
  virtual std::span<const std::uint32_t> Allowed() = 0;
  // Why no token may follow; null: some may. REQUIRES: Allowed has returned since the last Advance.
  virtual const Error* failure() const = 0;
};

}  // namespace loramux
