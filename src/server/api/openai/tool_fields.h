// The request fields that say which tools the model may call, and how.
#pragma once

#include <memory>

#include "http/json_reader.h"
#include "server/completion/completion_request.h"

namespace loramux {

// Reads `tools`, whose errors `fields` receives. Returns an empty set if there are none.
std::shared_ptr<const ToolSet> ReadTools(FieldReader& fields);

// Reads `tool_choice`, `parallel_tool_calls` and `include_reasoning`. `offered` are the functions of `tools`.
ToolFields ReadToolFields(FieldReader& fields, std::shared_ptr<const ToolSet> offered);

}  // namespace loramux
