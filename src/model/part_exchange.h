// What the parts of a step exchange between ranks: rows of activations, of which each rank has some columns.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "collective/collectives.h"
#include "formats/model_part.h"
#include "kernels/kernel_context.h"
#include "tensor/aligned_buffer.h"

namespace loramux {

// Memory grows to the largest exchange. After an error, what others would have sent is zeros. Not thread-safe.
class PartExchange {
 public:
  explicit PartExchange(const ModelPart& part) : part_(part) {}

  const ModelPart& part() const { return part_; }
  bool whole() const { return part_.whole(); }
  // Begins a step. `group` outlives it. REQUIRES: the group's rank and ranks are the part's; null: the part is whole.
  void Begin(Collectives* group);
  // Whether ranks exchange what goes into a target's layer and what comes out, or what comes out alone (kLmHead).
  bool Splits(LoraTarget target) const {
    return !whole() && (target == LoraTarget::kO || target == LoraTarget::kDown || target == LoraTarget::kLmHead);
  }
  // The first error of the step.
  const std::optional<Error>& error() const { return error_; }

  // Puts the ranks' columns side by side: `mine` are those that RangeOf gives this rank of `total`; `all` has room for
  // `total`. Where `to_root`, only rank 0 gets them. `mine` may be a part of `all`, at its place.
  void Columns(Rows mine, std::int64_t rows, std::int64_t total, Rows all, bool to_root = false);
  // The same, in memory of this object; until the next call.
  Rows Whole(Rows mine, std::int64_t rows, std::int64_t total);
  // Gives all ranks all rows of a matrix: `owners` says which rank has each row, and has filled it in.
  void RowsOfOwners(const std::vector<std::int64_t>& owners, std::int64_t width, Rows rows);

 private:
  // Exchanges mine_, of sizes_, to all_.
  void Gather(bool to_root);

  const ModelPart part_;
  Collectives* group_ = nullptr;
  std::optional<Error> error_;
  std::vector<std::int64_t> sizes_;  // floats of each rank
  std::vector<float> mine_, all_;
  AlignedBuffer<float> whole_;
};

}  // namespace loramux
