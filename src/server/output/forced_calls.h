// Grammars that make a model call a tool, for tool_choice "required" and for a named function.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/output/formats.h"
#include "server/output/tool_set.h"
#include "text/grammar/output_constraint.h"

namespace loramux {

// What an answer that must call a tool looks like.
struct ForcedCalls {
  OutputConstraint constraint;
  const CallGrammar* grammar = nullptr;  // reads such an answer
  std::shared_ptr<const ToolSet> tools;  // for `grammar`
};

// Demands one call of a function of `tools` or, with `parallel`, one or more. Calls are written as `format` writes them
// where that is text with JSON in it; otherwise, and without a format, as vLLM demands them: an array of {"name",
// "parameters"}.
ForcedCalls ForceCalls(const ToolFormat* format, std::shared_ptr<const ToolSet> tools, bool parallel);

// Demands one call of `function`, which `tools` has. Without a form of its own the whole answer is its arguments.
ForcedCalls ForceFunction(const ToolFormat* format, const ToolSet& tools, const std::string& function);

}  // namespace loramux
