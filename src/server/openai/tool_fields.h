// The request fields that say which tools the model may call, and how.
#pragma once

#include <memory>
#include <string>

#include "http/json_reader.h"
#include "server/output/tool_set.h"

namespace loramux {

// Whether the model must call a tool.
enum class ToolChoice { kAuto, kNone, kRequired, kNamed };

// What a chat request says of its tools.
struct ToolFields {
  ToolChoice choice = ToolChoice::kAuto;
  std::string function;  // of kNamed; one of `offered`
  // The functions on offer; null: none, or the model is not to call them, so the server looks for no calls.
  std::shared_ptr<const ToolSet> offered;
  bool parallel = true;           // false: the answer ends with its first call
  bool include_reasoning = true;  // false: reasoning is left out of the answer
};

// True if the answer must be a call.
inline bool MustCall(const ToolFields& tools) {
  return tools.choice == ToolChoice::kRequired || tools.choice == ToolChoice::kNamed;
}

// Reads `tools`, whose errors `fields` receives. Returns an empty set if there are none.
std::shared_ptr<const ToolSet> ReadTools(FieldReader& fields);

// Reads `tool_choice`, `parallel_tool_calls` and `include_reasoning`. `offered` are the functions of `tools`.
ToolFields ReadToolFields(FieldReader& fields, std::shared_ptr<const ToolSet> offered);

}  // namespace loramux
