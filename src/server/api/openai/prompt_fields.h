// Reads the prompts of a body: a string, an array of strings, an array of token ids, or an array of arrays of those.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "http/json_reader.h"
#include "server/completion/completion_request.h"

namespace loramux {

// Reads the prompts in the field `field`, each of which makes `n` sequences. Records an error if there is none, or
// more than `limits` allow.
void ReadPrompts(FieldReader& fields, std::string_view field, const RequestLimits& limits, std::int64_t n,
                 std::vector<Prompt>& prompts);

// Records the error about a request of `found` sequences.
void FailTooManySequences(FieldReader& fields, std::string_view field, const RequestLimits& limits, std::int64_t found);

}  // namespace loramux
