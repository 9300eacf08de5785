#include "server/api/openai/tool_fields.h"

#include <utility>

namespace loramux {
namespace {

void RefuseFunctionCall(FieldReader& fields) {
  const Json* choice = fields.Find("function_call");
  if (choice == nullptr || (choice->is_string() && (*choice == "auto" || *choice == "none"))) return;
  fields.Fail(ErrorCode::kUnsupported, "function_call",
              "this server does not support it; use `tool_choice` (found " + DescribeJson(*choice) + ")");
}

// The name in {"type": "function", "function": {"name"}}; empty, and an error, if it is none of `offered`.
std::string NamedFunction(const Json& choice, FieldReader& fields, const ToolSet& offered) {
  constexpr std::string_view kExpected =
      "\"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}";
  const auto function = choice.is_object() ? choice.find("function") : choice.end();
  const bool right = choice.is_object() && choice.value("type", Json("function")) == "function" &&
                     function != choice.end() && function->is_object() && function->contains("name") &&
                     (*function)["name"].is_string();
  if (!right) {
    fields.Expect("tool_choice", kExpected, &choice);
    return {};
  }
  std::string name = (*function)["name"];
  if (!offered.Has(name)) fields.Expect("tool_choice", "the name of a function in `tools`", &(*function)["name"]);
  return name;
}

void ReadToolChoice(FieldReader& fields, const ToolSet& offered, ToolFields& tools) {
  const Json* choice = fields.Find("tool_choice");
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {
    tools.choice = ToolChoice::kNone;
    return;
  }
  tools.choice = *choice == "required" ? ToolChoice::kRequired : ToolChoice::kNamed;
  if (tools.choice == ToolChoice::kNamed) tools.function = NamedFunction(*choice, fields, offered);
  if (offered.empty()) fields.Expect("tool_choice", "`tools` with it", choice);
}

// Checks one element of `tools` and adds its function.
void ReadTool(const Json& tool, const std::string& where, FieldReader& fields, ToolSet& set) {
  if (!tool.is_object()) return fields.Expect(where, "an object {\"type\", \"function\"}", &tool);
  FieldReader reader(tool, "");
  std::string type = "function";
  reader.String("type", type);
  if (!reader.ok() || type != "function") return fields.Expect(where + ".type", "\"function\"", reader.Find("type"));
  const Json* function = reader.Object("function");
  if (function == nullptr) return fields.Expect(where + ".function", "an object", reader.Find("function"));
  FieldReader function_fields(*function, "");
  std::string name;
  if (!function_fields.String("name", name) || name.empty()) {
    return fields.Expect(where + ".function.name", "a string", function_fields.Find("name"));
  }
  const Json* parameters = function_fields.Object("parameters");
  if (!function_fields.ok()) {
    return fields.Expect(where + ".function.parameters", "a JSON schema, which is an object",
                         function_fields.Find("parameters"));
  }
  set.Add(std::move(name), parameters == nullptr ? Json() : *parameters);
}

}  // namespace

std::shared_ptr<const ToolSet> ReadTools(FieldReader& fields) {
  auto set = std::make_shared<ToolSet>();
  const Json* list = fields.Array("tools");
  for (std::size_t i = 0; list != nullptr && i < list->size() && fields.ok(); ++i) {
    ReadTool((*list)[i], "tools[" + std::to_string(i) + "]", fields, *set);
  }
  return set;
}

ToolFields ReadToolFields(FieldReader& fields, std::shared_ptr<const ToolSet> offered) {
  ToolFields tools;
  RefuseFunctionCall(fields);
  fields.Boolean("parallel_tool_calls", tools.parallel);
  fields.Boolean("include_reasoning", tools.include_reasoning);
  if (offered == nullptr) return tools;
  ReadToolChoice(fields, *offered, tools);
  if (!offered->empty() && tools.choice != ToolChoice::kNone) tools.offered = std::move(offered);
  return tools;
}

}  // namespace loramux
