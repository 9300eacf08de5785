// One of the parts into which a group of ranks splits a model. Every linear layer is split by its outputs, so each
// output is the sum that one process computes, in its order: answers are bitwise the same for any number of ranks.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "formats/lora_target.h"
#include "formats/model_config.h"

namespace loramux {

// The part of rank `rank` of `ranks`.
struct ModelPart {
  std::int64_t rank = 0, ranks = 1;
  bool whole() const { return ranks == 1; }
};

// Adjacent outputs of a layer. `room`: the most that any rank has, which is what adapters leave room for, so that their
// pages have the same numbers everywhere.
struct OutputRange {
  std::int64_t first = 0, count = 0, room = 0;
};

// The rank's share of `total` outputs: all ranks but the last ones have equally many.
OutputRange RangeOf(const ModelPart& part, std::int64_t total);
// The rank's share of the heads, and of the heads of keys and values, which several ranks have where there are fewer of
// them than ranks.
OutputRange HeadsOf(const ModelPart& part, const ModelConfig& whole);
OutputRange KvHeadsOf(const ModelPart& part, std::int64_t num_kv_heads);
// The outputs of a target's layer that the rank computes; all of what ranks do not share.
OutputRange OutputsOf(const ModelPart& part, const ModelConfig& whole, LoraTarget target, std::int64_t layer = 0,
                      std::int32_t expert = -1);

// Error (kUnsupported): this many ranks cannot share the model; it says which extent is in the way, and which numbers
// of ranks can.
Status CheckParts(const ModelConfig& whole, std::int64_t ranks);
// The configuration of the rank's part: heads and feed-forward columns are its own; hidden states and the vocabulary
// are those of the whole. REQUIRES: CheckParts.
ModelConfig ConfigOfPart(const ModelPart& part, const ModelConfig& whole);

}  // namespace loramux
