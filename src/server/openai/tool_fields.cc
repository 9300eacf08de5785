#include "server/openai/tool_fields.h"

#include <utility>

namespace loramux {
namespace {

// "auto" leaves the choice to the model. Other values would have to be enforced.
void CheckToolChoice(FieldReader& fields) {
  for (const std::string_view name : {"tool_choice", "function_call"}) {
    const Json* choice = fields.Find(name);
    if (choice == nullptr || (choice->is_string() && (*choice == "auto" || *choice == "none"))) continue;
    fields.Fail(ErrorCode::kUnsupported, name,
                "expected \"auto\" or \"none\", which is all that is supported, found " + DescribeJson(*choice));
  }
}

bool WantsNoCalls(const FieldReader& fields) {
  const Json* choice = fields.Find("tool_choice");
  return choice != nullptr && choice->is_string() && *choice == "none";
}

void AddFunction(const Json& function, ToolSet& set) {
  const auto parameters = function.find("parameters");
  set.Add(function["name"].get<std::string>(), parameters == function.end() ? Json() : *parameters);
}

// Checks one element of `tools` and adds its function.
void ReadTool(const Json& tool, const std::string& where, FieldReader& fields, ToolSet& set) {
  if (!tool.is_object()) return fields.Expect(where, "an object {\"type\", \"function\"}", &tool);
  FieldReader reader(tool, "");
  std::string type;
  if (!reader.String("type", type) || type != "function") {
    return fields.Expect(where + ".type", "\"function\"", reader.Find("type"));
  }
  const Json* function = reader.Object("function");
  if (function == nullptr) return fields.Expect(where + ".function", "an object", reader.Find("function"));
  FieldReader function_fields(*function, "");
  std::string name;
  if (!function_fields.String("name", name) || name.empty()) {
    return fields.Expect(where + ".function.name", "a string", function_fields.Find("name"));
  }
  AddFunction(*function, set);
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
  CheckToolChoice(fields);
  fields.Boolean("parallel_tool_calls", tools.parallel);
  fields.Boolean("include_reasoning", tools.include_reasoning);
  if (offered != nullptr && !offered->empty() && !WantsNoCalls(fields)) tools.offered = std::move(offered);
  return tools;
}

}  // namespace loramux
