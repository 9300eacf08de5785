// Several adapters as one that does what all of them do.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "formats/adapter_config.h"

namespace loramux {

// One of the adapters of a sum. `name` stands for it in errors.
struct AdapterShare {
  const AdapterFile* file = nullptr;
  std::string name;
  double weight = 1;
};

// Returns the adapter that adds to each layer what the shares add, each times its weight: its A has the rows of all,
// its B their columns, so that its rank is the sum of theirs. Where scales differ, B is scaled in float32, and such an
// adapter keeps that type in memory. It shares the open files of the others. `label` stands for its path. Reads all
// weights for the digest, and those of each share to compare them with its digest.
//
// Errors: kUnsupported (adapter named): DoRA, a trained bias, own rows, or an activated LoRA, which are no sums of
// products; kInvalidArgument: the ranks are too many, a scale does not fit a float, or the files of a share were
// changed in place; kIoError.
Result<AdapterFile> JoinAdapters(std::span<const AdapterShare> shares, const std::string& label);

}  // namespace loramux
