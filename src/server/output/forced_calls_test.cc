#include "server/output/forced_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/output/call_parser.h"

namespace loramux::forced_calls_test {
namespace {

std::shared_ptr<const ToolSet> Tools() {
  auto tools = std::make_shared<ToolSet>();
  tools->Add("a \"b\"", Json());
  tools->Add("weather", Json::parse(R"({"type":"object","properties":{"city":{"$ref":"#/$defs/City"}},
                                        "$defs":{"City":{"type":"string"}}})"));
  return tools;
}

// What the schema of every function's arguments gets.
const std::string kWhiteSpace = R"("x-guidance":{"whitespace_pattern":"[\\x20\\x0A\\x0D\\x09]{1,40}"})";

// The calls in an answer, as name{arguments}, and its content.
std::string Read(const ForcedCalls& forced, std::string_view text) {
  CallParser parser(*forced.grammar, forced.tools);
  OutputEvents events;
  parser.Push(text, events);
  parser.Finish(events);
  std::string read;
  for (const OutputEvent& event : events.list()) {
    if (event.kind == OutputEvent::Kind::kCallBroken) read += "!";
    read += event.text;
  }
  return read;
}

TEST(ForcedCalls, OwnFormOfTheModel) {
  const ForcedCalls forced = ForceCalls(FindToolFormat("hermes"), Tools(), /*parallel=*/true);
  EXPECT_EQ(forced.constraint.kind, GrammarKind::kLark);
  EXPECT_EQ(forced.constraint.field, "tool_choice");
  EXPECT_EQ(forced.constraint.text,
            R"x(start: call ("\n" call)*
call: call_0 | call_1
call_0: "<tool_call>\n{\"name\": \"a \\\"b\\\"\", \"arguments\": " arguments_0 "}\n</tool_call>"
arguments_0: %json {"type":"object",)x" +
                kWhiteSpace + R"x(}
call_1: "<tool_call>\n{\"name\": \"weather\", \"arguments\": " arguments_1 "}\n</tool_call>"
arguments_1: %json {"type":"object","properties":{"city":{"$ref":"#/$defs/City"}},"$defs":{"City":{"type":"string"}},)x" +
                kWhiteSpace + "}\n");
  EXPECT_EQ(Read(forced, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"x\"}}\n</tool_call>"),
            R"(weather{"city":"x"})");
}

// Texts for people count for no limit of grammars; properties of the same names stay.
TEST(ForcedCalls, TextsForPeopleAreLeftOut) {
  auto tools = std::make_shared<ToolSet>();
  tools->Add("f", Json::parse(R"({"type":"object","description":"see :( ","title":"t","properties":{
      "description":{"type":"string","description":"1( 2( ","default":"x"},"title":{"enum":[{"title":1}]},
      "list":{"items":{"title":"t"}}},"dependentRequired":{"title":["list"]}})"));
  EXPECT_THAT(ForceCalls(FindToolFormat("hermes"), tools, false).constraint.text,
              testing::HasSubstr(
                  R"({"type":"object","properties":{"description":{"type":"string"},"title":{"enum":[{"title":1}]},)"
                  R"("list":{"items":{}}},"dependentRequired":{"title":["list"]},)"));
}

TEST(ForcedCalls, AListForOthers) {
  for (const ToolFormat* format :
       {static_cast<const ToolFormat*>(nullptr), FindToolFormat("mistral"), FindToolFormat("qwen3_coder")}) {
    const ForcedCalls forced = ForceCalls(format, Tools(), /*parallel=*/true);
    EXPECT_TRUE(forced.constraint.text.starts_with("start: \"[\" call (\", \" call)* \"]\"\n"))
        << forced.constraint.text;
    EXPECT_EQ(Read(forced, R"([{"name": "a", "parameters": {}}, {"name": "b", "parameters": {"x": 1}}])"),
              R"(a{}b{"x": 1})");
    EXPECT_EQ(Read(forced, R"([{"name": "a")"), R"([{"name": "a")");
    EXPECT_TRUE(ForceCalls(format, Tools(), false).constraint.text.starts_with("start: \"[\" call \"]\"\n"));
  }
}

TEST(ForcedCalls, ANamedFunction) {
  const ForcedCalls llama = ForceFunction(FindToolFormat("llama3_json"), *Tools(), "weather");
  EXPECT_TRUE(llama.constraint.text.starts_with("start: call\ncall: call_0\n")) << llama.constraint.text;
  EXPECT_EQ(llama.constraint.text.find("a \\"), std::string::npos);
  const ForcedCalls plain = ForceFunction(nullptr, *Tools(), "weather");
  EXPECT_EQ(plain.constraint.kind, GrammarKind::kJsonSchema);
  EXPECT_EQ(plain.constraint.text, DumpJson(Tools()->functions().at("weather")));
  EXPECT_EQ(Read(plain, R"({"city": "x"})"), R"(weather{"city": "x"})");
  EXPECT_EQ(Read(plain, R"({"city": )"), R"(weather{"city": !{"city": )");
  EXPECT_EQ(ForceFunction(nullptr, *Tools(), "a \"b\"").constraint.text, R"({"type":"object"})");
}

}  // namespace
}  // namespace loramux::forced_calls_test
