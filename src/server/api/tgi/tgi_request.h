// Translates the bodies of POST /generate, /generate_stream and / (Text Generation Inference) into completion requests.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "http/json_reader.h"
#include "server/api/translation.h"
#include "server/completion/dialect.h"

namespace loramux {

// The three paths: they differ in whether the answer is streamed, and in the body of a whole answer.
enum class TgiPath {
  kGenerate,        // whole
  kGenerateStream,  // streamed
  kRoot,            // as the field `stream` says; a whole answer is an array
};

// The names that fields of a completion request have in this dialect.
std::span<const FieldName> TgiNames();
// What the translation does with the fields of the body, and of `parameters`, that it does not pass on.
std::span<const DialectField> TgiFields();
std::span<const DialectField> TgiParameters();

// A translated request.
struct TgiCompletion {
  Json completion;     // the completion request
  std::string prefix;  // what the answer's text begins with: the prompt, where `return_full_text` asks for it
  bool details = false;
  bool prompt_details = false;  // the completion's text and log-probabilities begin with the prompt
};

// Translates a parsed body. Errors name the fields of the dialect. `base_model` answers requests without `adapter_id`.
// REQUIRES: `body` is an object.
Result<TgiCompletion> CompletionOfTgi(Json body, TgiPath path, std::string_view base_model);

}  // namespace loramux
