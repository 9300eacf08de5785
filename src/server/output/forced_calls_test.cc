#include "server/output/forced_calls.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "server/output/call_parser.h"
#include "text/grammar/grammar_compiler.h"
#include "text/grammar/matching_for_test.h"

namespace loramux::forced_calls_test {
namespace {

std::shared_ptr<const ToolSet> Tools() {
  auto tools = std::make_shared<ToolSet>();
  tools->Add("a \"b\"", Json());
  tools->Add("weather", Json::parse(R"({"type":"object","properties":{"city":{"$ref":"#/$defs/City"}},
                                        "$defs":{"City":{"type":"string"}}})"));
  return tools;
}

// The calls in an answer, as name{arguments}, and its content.
std::string Read(const ForcedCalls& forced, std::string_view text) {
  CallParser parser(*forced.grammar, forced.tools);
  OutputEvents events;
  parser.Push(text, events);
  parser.Finish(events, false);
  std::string read;
  for (const OutputEvent& event : events.list()) {
    if (event.kind == OutputEvent::Kind::kCallBroken) read += "!";
    read += event.text;
  }
  return read;
}

// Whether the grammar of the demand allows an answer.
bool Allows(const ForcedCalls& forced, std::string_view text) {
  static const Tokenizer tokenizer = MakeByteTokenizer();
  constexpr TokenId kEos[] = {kByteEos};
  static const auto compiler = *GrammarCompiler::Create(tokenizer, kEos);
  const auto grammar = compiler->Compile(forced.constraint);
  EXPECT_TRUE(grammar.ok()) << (grammar.ok() ? "" : grammar.error().message);
  return grammar.ok() && Matches(**grammar, text);
}

constexpr std::string_view kHermesAnswer =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"x\"}}\n</tool_call>";
constexpr std::string_view kListAnswer =
    R"([{"name": "a \"b\"", "parameters": {}}, {"name": "weather", "parameters": {"city": "x"}}])";

TEST(ForcedCalls, OwnFormOfTheModel) {
  const ForcedCalls forced = ForceCalls(FindToolFormat("hermes"), Tools(), /*parallel=*/true);
  EXPECT_EQ(forced.constraint.field, "tool_choice");
  EXPECT_EQ(Read(forced, kHermesAnswer), R"(weather{"city":"x"})");
  const std::string two = std::string(kHermesAnswer) + "\n" + std::string(kHermesAnswer);
  EXPECT_TRUE(Allows(forced, kHermesAnswer));
  EXPECT_TRUE(Allows(forced, two));
  EXPECT_TRUE(Allows(forced, R"x(<tool_call>
{"name": "a \"b\"", "arguments": {"y":1}}
</tool_call>)x"));
  for (const std::string_view wrong :
       {"", "text", "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":1}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>"}) {
    EXPECT_FALSE(Allows(forced, wrong)) << wrong;
  }
  EXPECT_FALSE(Allows(ForceCalls(FindToolFormat("hermes"), Tools(), /*parallel=*/false), two));
}

// Whatever the parameters allow, every parser reads a call in every answer that the grammar allows.
TEST(ForcedCalls, ArgumentsAreObjects) {
  for (const char* parameters :
       {"null", "{}", R"({"description":"d"})", R"({"anyOf":[{"type":"object"},{"type":"string"}]})",
        R"({"$ref":"#/$defs/A","$defs":{"A":{}}})", R"({"allOf":[{}]})", R"({"additionalProperties":{}})",
        R"({"type":["object","null"]})"}) {
    auto tools = std::make_shared<ToolSet>();
    tools->Add("f", Json::parse(parameters));
    for (const char* name :
         {"", "gemma4", "granite", "hermes", "llama3_json", "mistral", "phi4_mini_json", "qwen3_coder"}) {
      const ToolFormat* format = FindToolFormat(name);
      const ForcedCalls any = ForceCalls(format, tools, /*parallel=*/true), named = ForceFunction(format, *tools, "f");
      const bool text = format != nullptr && format->text != nullptr;
      const std::string before =
          text ? fmt::format("{}\"f\"{}", format->text->before_name, format->text->before_arguments)
               : R"([{"name": "f", "parameters": )";
      const std::string after = text ? std::string(format->text->after) : "}]";
      EXPECT_TRUE(Allows(any, before + R"({"x":1})" + after)) << name << parameters;
      EXPECT_EQ(Read(any, before + R"({"x":1})" + after), R"(f{"x":1})") << name;
      const std::string alone = text ? before + "{}" + after : "{}";
      EXPECT_TRUE(Allows(named, alone)) << name << parameters;
      EXPECT_EQ(Read(named, alone), "f{}") << name;
      for (const char* other : {"\"f\"", "null", "1", "[]"}) {
        EXPECT_FALSE(Allows(any, before + other + after)) << name << parameters << other;
        EXPECT_FALSE(Allows(named, text ? before + other + after : other)) << name << parameters << other;
      }
    }
  }
}

TEST(ForcedCalls, AListForOthers) {
  for (const ToolFormat* format :
       {static_cast<const ToolFormat*>(nullptr), FindToolFormat("mistral"), FindToolFormat("qwen3_coder")}) {
    const ForcedCalls forced = ForceCalls(format, Tools(), /*parallel=*/true);
    EXPECT_TRUE(Allows(forced, kListAnswer));
    EXPECT_EQ(Read(forced, kListAnswer), R"(a "b"{}weather{"city": "x"})");
    EXPECT_EQ(Read(forced, R"([{"name": "a")"), R"([{"name": "a")");
    EXPECT_FALSE(Allows(ForceCalls(format, Tools(), /*parallel=*/false), kListAnswer));
  }
}

TEST(ForcedCalls, ANamedFunction) {
  const ForcedCalls llama = ForceFunction(FindToolFormat("llama3_json"), *Tools(), "weather");
  EXPECT_TRUE(Allows(llama, R"({"name": "weather", "parameters": {"city":"x"}})"));
  EXPECT_FALSE(Allows(llama, R"({"name": "a \"b\"", "parameters": {}})"));
  const ForcedCalls plain = ForceFunction(nullptr, *Tools(), "weather");
  EXPECT_TRUE(Allows(plain, R"({"city": "x"})"));
  EXPECT_FALSE(Allows(plain, R"({"city": 1})"));
  EXPECT_EQ(Read(plain, R"({"city": "x"})"), R"(weather{"city": "x"})");
  EXPECT_EQ(Read(plain, R"({"city": )"), R"(weather{"city": !{"city": )");
}

}  // namespace
}  // namespace loramux::forced_calls_test
