#include "server/output/forced_calls.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/output/json_call.h"

namespace loramux {
namespace {

constexpr std::string_view kField = "tool_choice";

// An array of calls is the whole answer.
std::unique_ptr<CallBody> OpenCallList(const std::shared_ptr<const ToolSet>&) {
  return std::make_unique<JsonCallListBody>(JsonCallBody::Keys::kAny);
}
constinit const CallGrammar kCallList = {{}, OpenCallList, '[', {}};

// The whole answer is the arguments of the only function.
class ArgumentsBody final : public CallBody {
 public:
  explicit ArgumentsBody(std::string function) : function_(std::move(function)) {}

  State Step(char c, CallWriter& calls) override {
    const JsonScanner::Result result = scanner_.Step(c);
    if (result == JsonScanner::Result::kError) return State::kBroken;
    if (!calls.open()) calls.Start(function_);
    calls.Arguments({&c, 1});
    if (result == JsonScanner::Result::kMore) return State::kMore;
    calls.End();
    return State::kDone;
  }

 private:
  std::string function_;
  JsonScanner scanner_;
};

std::unique_ptr<CallBody> OpenArguments(const std::shared_ptr<const ToolSet>& tools) {
  return std::make_unique<ArgumentsBody>(tools->functions().begin()->first);
}
constinit const CallGrammar kArguments = {{}, OpenArguments, '{', {}};

// Keywords whose values are schemas or arrays of them, and those whose values have a schema for each name.
constexpr std::string_view kOfSchemas[] = {"items", "prefixItems", "additionalProperties", "allOf",    "anyOf",
                                           "oneOf", "not",         "propertyNames",        "contains", "if",
                                           "then",  "else"};
constexpr std::string_view kOfNamedSchemas[] = {"properties", "patternProperties", "$defs", "definitions"};

// Removes what a schema says for people. The limits of grammars would count it.
void RemoveTexts(Json& schema) {
  if (schema.is_array()) {
    for (Json& item : schema) RemoveTexts(item);
  }
  if (!schema.is_object()) return;
  for (const char* keyword : {"title", "description", "$comment", "examples", "default"}) schema.erase(keyword);
  for (const auto& [keyword, value] : schema.items()) {
    const bool named = std::ranges::find(kOfNamedSchemas, std::string_view(keyword)) != std::end(kOfNamedSchemas);
    if (named && value.is_object()) {
      for (Json& inner : value) RemoveTexts(inner);
    } else if (std::ranges::find(kOfSchemas, std::string_view(keyword)) != std::end(kOfSchemas)) {
      RemoveTexts(value);
    }
  }
}

// The schema of a function's arguments; any object, if it has none.
Json SchemaOf(const Json& parameters) {
  Json schema = parameters.is_object() && !parameters.empty() ? parameters : Json{{"type", "object"}};
  RemoveTexts(schema);
  return schema;
}

// The same, with the white space that documents may have elsewhere (text/bindings/src/grammar/mod.rs): a model that
// knows nothing to call would repeat it without end.
Json BoundedSchemaOf(const Json& parameters) {
  Json schema = SchemaOf(parameters);
  schema["x-guidance"] = {{"whitespace_pattern", R"([\x20\x0A\x0D\x09]{1,40})"}};
  return schema;
}

std::string Quoted(std::string_view text) { return DumpJson(Json(text)); }

// A rule of Lark for each function: its texts around the arguments, and their schema.
std::string LarkOf(const CallText& text, const ToolSet& tools, bool parallel) {
  std::string rules, calls;
  int number = 0;
  for (const auto& [name, parameters] : tools.functions()) {
    const std::string before = fmt::format("{}{}{}", text.before_name, Quoted(name), text.before_arguments);
    calls += fmt::format("{}call_{}", number == 0 ? "" : " | ", number);
    rules += fmt::format("call_{0}: {1} arguments_{0} {2}\narguments_{0}: %json {3}\n", number, Quoted(before),
                         Quoted(text.after), DumpJson(BoundedSchemaOf(parameters)));
    ++number;
  }
  const std::string more = parallel ? fmt::format(" ({} call)*", Quoted(text.between)) : std::string();
  const std::string all = text.brackets ? fmt::format("\"[\" call{} \"]\"", more) : "call" + more;
  return fmt::format("start: {}\ncall: {}\n{}", all, calls, rules);
}

// vLLM's form, for models whose own form is not known or is no text with JSON in it.
constexpr CallText kListText = {.before_name = "{\"name\": ",
                                .before_arguments = ", \"parameters\": ",
                                .after = "}",
                                .between = ", ",
                                .brackets = true};

}  // namespace

ForcedCalls ForceCalls(const ToolFormat* format, std::shared_ptr<const ToolSet> tools, bool parallel) {
  const bool own = format != nullptr && format->text != nullptr;
  OutputConstraint lark{GrammarKind::kLark, LarkOf(own ? *format->text : kListText, *tools, parallel),
                        std::string(kField)};
  return {std::move(lark), own ? format->grammar : &kCallList, std::move(tools)};
}

ForcedCalls ForceFunction(const ToolFormat* format, const ToolSet& tools, const std::string& function) {
  const Json& parameters = tools.functions().find(function)->second;
  auto only = std::make_shared<ToolSet>();
  only->Add(function, parameters);
  if (format != nullptr && format->text != nullptr) return ForceCalls(format, std::move(only), /*parallel=*/false);
  OutputConstraint schema{GrammarKind::kJsonSchema, DumpJson(SchemaOf(parameters)), std::string(kField)};
  return {std::move(schema), &kArguments, std::move(only)};
}

}  // namespace loramux
