// Translates the body of POST /inference/v1/generate (vLLM's tokens to tokens) into a completion request.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "http/json_reader.h"
#include "server/api/translation.h"
#include "server/completion/dialect.h"

namespace loramux {

// The names that fields of a completion request have in this dialect.
std::span<const FieldName> TokensNames();
// What the translation does with the fields of the body, and of `sampling_params`. A field that neither these nor
// completions know is refused: here no field is ignored that might have changed the answer.
std::span<const DialectField> TokensFields();
std::span<const DialectField> TokensParameters();

// A translated request.
struct TokensCompletion {
  Json completion;              // the completion request
  std::string request_id;       // the client's; empty: it gave none
  bool returns_prompt = false;  // the answer has the prompt's ids
};

// Translates a parsed body. Errors name the fields of the dialect. `base_model` answers requests without `model`.
// REQUIRES: `body` is an object.
Result<TokensCompletion> CompletionOfTokens(Json body, std::string_view base_model);

}  // namespace loramux
