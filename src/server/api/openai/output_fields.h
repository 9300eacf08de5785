// The fields of a request that demand structured output: OpenAI's response_format, vLLM's structured_outputs and
// guided_*, llama.cpp's grammar and json_schema.
#pragma once

#include <optional>

#include "http/json_reader.h"
#include "text/grammar/output_constraint.h"

namespace loramux {

// Reads them into one constraint, which is not compiled yet. Errors: a field is wrong, is not supported, or a second
// field demands something too.
void ReadOutputConstraint(FieldReader& fields, std::optional<OutputConstraint>& output);

}  // namespace loramux
