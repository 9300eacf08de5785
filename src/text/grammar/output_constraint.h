// What a request demands of the text of its answer: a grammar, as text.
#pragma once

#include <string>

namespace loramux {

// The language in which a grammar is written. The values are those of loramux_grammar_kind.
enum class GrammarKind {
  kJsonSchema,         // JSON documents that a schema describes
  kCompactJsonSchema,  // the same, written without white space
  kRegex,              // texts that match a regular expression from end to end
  kLark,               // llguidance's dialect of Lark
  kGbnf,               // llama.cpp's
  kToolCalls,          // calls of tools (server/output/forced_calls.cc), as bindings/src/grammar/calls.rs reads them
};

// A grammar that every answer of a request must match. Not compiled and not checked yet.
struct OutputConstraint {
  GrammarKind kind = GrammarKind::kJsonSchema;
  std::string text;   // the schema or the calls as JSON text, the regular expression or the grammar
  std::string field;  // field of the request that demands it, such as "response_format"; errors name it
};

}  // namespace loramux
