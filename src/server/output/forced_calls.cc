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

// What the compiler of grammars reads (text/bindings/src/grammar/calls.rs): each call with its texts around the
// arguments, and their schema. Without a name the arguments are the call.
OutputConstraint Demand(const CallText& text, const ToolSet& tools, bool parallel, bool with_name = true) {
  Json calls = Json::array();
  for (const auto& [name, parameters] : tools.functions()) {
    const std::string quoted = with_name ? DumpJson(Json(name)) : std::string();
    calls.push_back({{"name", name},
                     {"before", fmt::format("{}{}{}", text.before_name, quoted, text.before_arguments)},
                     {"schema", parameters},
                     {"after", text.after}});
  }
  const Json demand = {{"calls", std::move(calls)},
                       {"first", text.brackets ? "[" : ""},
                       {"between", parallel ? Json(text.between) : Json()},
                       {"last", text.brackets ? "]" : ""}};
  return {GrammarKind::kToolCalls, DumpJson(demand), std::string(kField)};
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
  OutputConstraint demand = Demand(own ? *format->text : kListText, *tools, parallel);
  return {std::move(demand), own ? format->grammar : &kCallList, std::move(tools)};
}

ForcedCalls ForceFunction(const ToolFormat* format, const ToolSet& tools, const std::string& function) {
  auto only = std::make_shared<ToolSet>();
  only->Add(function, tools.functions().find(function)->second);
  if (format != nullptr && format->text != nullptr) return ForceCalls(format, std::move(only), /*parallel=*/false);
  OutputConstraint demand = Demand({}, *only, /*parallel=*/false, /*with_name=*/false);
  return {std::move(demand), &kArguments, std::move(only)};
}

}  // namespace loramux
