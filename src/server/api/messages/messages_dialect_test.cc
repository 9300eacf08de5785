#include "server/api/messages/messages_dialect.h"

#include <gmock/gmock.h>

#include "http/json_reader.h"
#include "server/api/messages/messages_request.h"

namespace loramux::messages_dialect_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Json Parsed(std::string_view text) {
  auto json = ParseJson(text);
  EXPECT_TRUE(json.ok()) << text;
  return json.ok() ? *json : Json();
}

// A request with these messages and further fields.
std::string Body(const std::string& messages, const std::string& more = "") {
  return R"({"model":"m","max_tokens":9,"messages":)" + messages + (more.empty() ? "" : "," + more) + "}";
}
constexpr const char* kHello = R"([{"role":"user","content":"hi"}])";

Json Chat(const std::string& body) {
  auto chat = ChatOfMessages(Parsed(body), true);
  EXPECT_TRUE(chat.ok()) << body << ": " << chat.error().message;
  return chat.ok() ? *chat : Json::object();
}

DialectContext Context() { return {.limits = {}, .number = "07", .created = 5}; }

Result<DialectRequest> Parse(const std::string& body) { return MessagesDialect().Parse(body, Context()); }

std::string Refusal(const std::string& body) {
  const auto parsed = Parse(body);
  return parsed.ok() ? "accepted" : parsed.error().param + " " + parsed.error().message;
}

TEST(MessagesRequest, TextsAndTheSystemPrompt) {
  const Json chat =
      Chat(Body(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
                                  {"role":"assistant","content":"c"},{"role":"user","content":"d"}])",
                R"("system":[{"type":"text","text":"be","cache_control":{}},{"type":"text","text":"kind"}])"));
  EXPECT_EQ(chat["messages"], Parsed(R"([
      {"role":"system","content":[{"type":"text","text":"be"},{"type":"text","text":"kind"}]},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":"c"},{"role":"user","content":"d"}])"));
  EXPECT_EQ(chat["max_tokens"], 9);
  EXPECT_FALSE(chat.contains("system"));
  EXPECT_FALSE(chat.contains("continue_final_message"));
}

TEST(MessagesRequest, ToolsAndTheirResults) {
  const Json chat = Chat(Body(
      R"([{"role":"user","content":"weather?"},
          {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"let me"},
                                         {"type":"tool_use","id":"t1","name":"look","input":{"city":"Bonn"}}]},
          {"role":"user","content":[{"type":"text","text":"so"},
                                    {"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"rain"}]},
                                    {"type":"tool_result","tool_use_id":"t2","content":"broke","is_error":true},
                                    {"type":"text","text":"and?"}]}])",
      R"("tools":[{"name":"look","description":"Looks","input_schema":{"type":"object"}}],
         "tool_choice":{"type":"any","disable_parallel_tool_use":true})"));
  EXPECT_EQ(chat["messages"], Parsed(R"([
      {"role":"user","content":"weather?"},
      {"role":"assistant","content":"let me","reasoning_content":"hm","tool_calls":[
        {"id":"t1","type":"function","function":{"name":"look","arguments":"{\"city\":\"Bonn\"}"}}]},
      {"role":"user","content":"so"},{"role":"tool","tool_call_id":"t1","content":"rain"},
      {"role":"tool","tool_call_id":"t2","content":"Error: broke"},{"role":"user","content":"and?"}])"));
  EXPECT_EQ(chat["tools"], Parsed(R"([{"type":"function","function":{"name":"look","description":"Looks",
                                       "parameters":{"type":"object"}}}])"));
  EXPECT_EQ(chat["tool_choice"], "required");
  EXPECT_EQ(chat["parallel_tool_calls"], false);
  EXPECT_EQ(Chat(Body(kHello, R"("tool_choice":{"type":"tool","name":"f"})"))["tool_choice"],
            Parsed(R"({"type":"function","function":{"name":"f"}})"));
}

TEST(MessagesRequest, OtherFieldsAreTranslatedOrPassedOn) {
  const Json chat = Chat(Body(kHello, R"("stop_sequences":["x"],"top_k":3,"min_p":0.5,"metadata":{"user_id":"u"},
      "thinking":{"type":"enabled","budget_tokens":1024},
      "output_config":{"format":{"type":"json_schema","schema":{"type":"object"}},"effort":"low"})"));
  EXPECT_EQ(chat["reasoning_effort"], "low");
  EXPECT_EQ(chat["stop"], Parsed(R"(["x"])"));
  EXPECT_EQ(chat["top_k"], 3);
  EXPECT_EQ(chat["min_p"], 0.5);
  EXPECT_FALSE(chat.contains("metadata"));
  EXPECT_EQ(chat["chat_template_kwargs"], Parsed(R"({"enable_thinking":true})"));
  EXPECT_EQ(chat["response_format"]["json_schema"]["schema"], Parsed(R"({"type":"object"})"));
  EXPECT_EQ(
      Chat(Body(kHello, R"("thinking":{"type":"disabled"},"chat_template_kwargs":{"a":1})"))["chat_template_kwargs"],
      Parsed(R"({"a":1,"enable_thinking":false})"));
}

// Anthropic's way to begin the answer: the model goes on with the last message.
TEST(MessagesRequest, ALastMessageOfTheAssistantIsContinued) {
  const auto parsed = Parse(Body(R"([{"role":"user","content":"hi"},{"role":"assistant","content":"My name"}])"));
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->request.chat.continue_final_message);
  EXPECT_EQ(parsed->request.chat.final_message, "My name");
  EXPECT_FALSE(parsed->request.chat.add_generation_prompt);
}

TEST(MessagesRequest, ErrorsNameTheFieldsOfThisApi) {
  EXPECT_THAT(Refusal(R"({"model":"m","messages":[{"role":"user","content":"x"}]})"), HasSubstr("`max_tokens`"));
  EXPECT_THAT(Refusal(Body("[]")), HasSubstr("`messages`"));
  EXPECT_THAT(Refusal(Body(kHello, R"("chat_template_kwargs":3)")), HasSubstr("`chat_template_kwargs`"));
  for (const std::string field : {"stop", "response_format", "parallel_tool_calls"}) {
    EXPECT_THAT(Refusal(Body(kHello, "\"" + field + "\":[1]")), HasSubstr("`" + field + "`"));
  }
  EXPECT_THAT(Refusal(Body(R"([{"role":"tool","content":"x"}])")), HasSubstr("messages[0].role"));
  EXPECT_THAT(Refusal(Body(R"([{"role":"user","content":[{"type":"image","source":{}}]}])")),
              testing::AllOf(HasSubstr("messages[0].content[0].type"), HasSubstr("\"image\"")));
  EXPECT_THAT(Refusal(Body(R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":
                              [{"type":"image"}]}]}])")),
              HasSubstr("messages[0].content[0].content[0].type"));
  EXPECT_THAT(Refusal(Body(kHello, R"("stop_sequences":[1])")), HasSubstr("stop_sequences `stop_sequences`"));
  EXPECT_THAT(Refusal(Body(kHello, R"("tools":[{"type":"bash_20250124","name":"bash"}])")), HasSubstr("tools[0].type"));
  EXPECT_THAT(Refusal(Body(kHello, R"("tool_choice":{"type":"tool"})")), HasSubstr("`tool_choice`"));
  EXPECT_THAT(Refusal(Body(kHello, R"("n":2)")), HasSubstr("`n`"));
  EXPECT_THAT(Refusal(Body(kHello, R"("mcp_servers":[{}])")), HasSubstr("`mcp_servers`"));
  EXPECT_THAT(Refusal(Body(kHello, R"("temperature":"hot")")), HasSubstr("`temperature`"));
  EXPECT_EQ(Refusal(Body(kHello, R"("tools":[{"name":"f","input_schema":{}}])")), "accepted");
  EXPECT_EQ(Refusal(Body(kHello)), "accepted");
}

// What Claude Code sends: reminders of the role `system`, the line of its bill before its prompt, and edits that remove
// nothing.
TEST(MessagesRequest, WhatClaudeCodeSends) {
  const std::string body = Body(R"([{"role":"user","content":"hi"},{"role":"system","content":"remember"},
      {"role":"assistant","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"system","content":[{"type":"text","text":"now"}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","is_error":true,
        "content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]}]}])",
                                R"("system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2; cch=1;"},
      {"type":"text","text":"be kind"}],"context_management":{"edits":[]})");
  EXPECT_EQ(Chat(body)["messages"], Parsed(R"([{"role":"system","content":"be kind"},{"role":"user","content":"hi"},
      {"role":"system","content":"remember"},
      {"role":"assistant","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"system","content":"now"},
      {"role":"tool","tool_call_id":"t","content":[{"type":"text","text":"Error: x"},{"type":"text","text":"y"}]}])"));
  EXPECT_TRUE(Parse(body)->request.chat.fold_system);
  EXPECT_TRUE(ParseMessagesCount(body, {})->chat.fold_system);
  const auto edits = [](const std::string& list) {
    return Body(kHello, R"("context_management":{"edits":)" + list + "}");
  };
  EXPECT_EQ(Refusal(edits(R"([{"type":"clear_thinking_20251015","keep":"all"}])")), "accepted");
  EXPECT_THAT(
      Refusal(edits(R"([{"type":"clear_thinking_20251015","keep":"all"},{"type":"clear_tool_uses_20250919"}])")),
      HasSubstr("context_management.edits[1]"));
  EXPECT_THAT(Refusal(edits("3")), HasSubstr("context_management"));
}

TEST(MessagesRequest, ACountNeedsNoLength) {
  EXPECT_TRUE(ParseMessagesCount(R"({"model":"m","messages":[{"role":"user","content":"x"}]})", {}).ok());
  EXPECT_EQ(MessagesCountBody(7), R"({"input_tokens":7})");
}

ChoiceOutput Output(std::string text, FinishReason finish = FinishReason::kNone, StopReason stop = {}) {
  ChoiceOutput output;
  output.text = std::move(text);
  output.finish = finish;
  output.stop_reason = std::move(stop);
  return output;
}
constexpr Usage kUsage{.prompt_tokens = 10, .completion_tokens = 3, .cached_tokens = 4};

TEST(MessagesAnswer, WholeBody) {
  auto parsed = Parse(Body(kHello));
  const ChoiceOutput choices[] = {Output("hello", FinishReason::kStop)};
  EXPECT_EQ(Parsed(parsed->writer->Body(choices, kUsage)),
            Parsed(R"({"id":"msg_07","type":"message","role":"assistant","model":"m",
                       "content":[{"type":"text","text":"hello"}],"stop_reason":"end_turn","stop_sequence":null,
                       "usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,
                                "output_tokens":3}})"));
}

TEST(MessagesAnswer, StopReasons) {
  const auto end = [](ChoiceOutput output) {
    const ChoiceOutput choices[] = {std::move(output)};
    const Json body = Parsed(Parse(Body(kHello))->writer->Body(choices, kUsage));
    return DumpJson(body["stop_reason"]) + DumpJson(body["stop_sequence"]);
  };
  EXPECT_EQ(end(Output("", FinishReason::kLength)), R"("max_tokens"null)");
  EXPECT_EQ(end(Output("", FinishReason::kStop, std::string("END"))), R"("stop_sequence""END")");
  EXPECT_EQ(end(Output("", FinishReason::kStop, TokenId{5})), R"("end_turn"null)");
}

// The names of the events of a stream.
std::vector<std::string> Names(std::string_view events) {
  std::vector<std::string> names;
  while (!events.empty()) {
    const auto end = events.find("\n\n");
    const std::string_view event = events.substr(0, end);
    const auto line = event.find('\n');
    EXPECT_TRUE(event.starts_with("event: ") && event.substr(line + 1).starts_with("data: ")) << event;
    names.emplace_back(event.substr(7, line - 7));
    EXPECT_EQ(Parsed(event.substr(line + 7)).value("type", ""), names.back());
    events.remove_prefix(end + 2);
  }
  return names;
}

TEST(MessagesAnswer, Stream) {
  auto parsed = Parse(Body(kHello, R"("stream":true)"));
  AnswerWriter& writer = *parsed->writer;
  const std::string first = writer.Delta(Output("he"), kUsage);
  EXPECT_THAT(Names(first), ElementsAre("message_start", "content_block_start", "content_block_delta"));
  EXPECT_THAT(first, HasSubstr(R"("output_tokens":0)"));
  EXPECT_THAT(first, HasSubstr(R"({"type":"text_delta","text":"he"})"));
  EXPECT_THAT(Names(writer.Delta(Output(""), kUsage)), ElementsAre());
  const std::string more = writer.Delta(Output("y", FinishReason::kStop, std::string("!")), kUsage);
  EXPECT_THAT(Names(more), ElementsAre("content_block_delta"));
  const std::string end = writer.End(kUsage);
  EXPECT_THAT(Names(end), ElementsAre("content_block_stop", "message_delta", "message_stop"));
  EXPECT_THAT(end, HasSubstr(R"("delta":{"stop_reason":"stop_sequence","stop_sequence":"!"})"));
  EXPECT_THAT(Names(std::string(writer.KeepAlive())), ElementsAre("ping"));
}

// Reasoning, a text, a call, and a call that breaks off.
ChoiceOutput Calls() {
  using Kind = OutputEvent::Kind;
  ChoiceOutput output = Output("", FinishReason::kStop);
  output.events = {{Kind::kReasoning, 0, "hm"},
                   {Kind::kContent, 0, "I look"},
                   {Kind::kCallStart, 0, "f", 0, "call_1"},
                   {Kind::kArguments, 0, "{\"a\":"},
                   {Kind::kArguments, 0, "1}"},
                   {Kind::kCallEnd, 0, ""},
                   {Kind::kCallStart, 1, "g", 0, "call_2"},
                   {Kind::kCallBroken, 1, "<tool>g", 4}};
  output.has_calls = true;
  return output;
}

TEST(MessagesAnswer, CallsAndReasoningAreBlocks) {
  const ChoiceOutput choices[] = {Calls()};
  const Json body = Parsed(Parse(Body(kHello))->writer->Body(choices, kUsage));
  EXPECT_EQ(body["content"], Parsed(R"([{"type":"thinking","thinking":"hm","signature":""},
      {"type":"text","text":"I look"},{"type":"tool_use","id":"call_1","name":"f","input":{"a":1}},
      {"type":"text","text":"<tool>g"}])"));
  EXPECT_EQ(body["stop_reason"], "tool_use");
}

// What a model writes as arguments is sometimes no JSON that a client could read, and sometimes only careless.
TEST(MessagesAnswer, InputThatAModelWrote) {
  const auto block = [](const std::string& arguments) {
    using Kind = OutputEvent::Kind;
    ChoiceOutput output = Output("", FinishReason::kStop);
    output.events = {
        {Kind::kCallStart, 0, "f", 0, "call_1"}, {Kind::kArguments, 0, arguments}, {Kind::kCallEnd, 0, ""}};
    output.has_calls = true;
    const ChoiceOutput choices[] = {std::move(output)};
    return Parsed(Parse(Body(kHello))->writer->Body(choices, kUsage))["content"][0];
  };
  EXPECT_EQ(block(R"({"x":1,"y":2,"x":3})")["input"], Parsed(R"({"x":3,"y":2})"));
  EXPECT_EQ(block("")["input"], Json::object());
  EXPECT_EQ(block(R"({"x":1e999})"), Parsed(R"({"type":"text","text":"{\"x\":1e999}"})"));
}

TEST(MessagesAnswer, CallsAndReasoningInAStream) {
  auto parsed = Parse(Body(kHello, R"("stream":true)"));
  const std::string events = parsed->writer->Delta(Calls(), kUsage);
  EXPECT_THAT(Names(events),
              ElementsAre("message_start", "content_block_start", "content_block_delta", "content_block_stop",
                          "content_block_start", "content_block_delta", "content_block_stop",  // the text
                          "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
                          "content_block_start", "content_block_stop",  // the call that broke off
                          "content_block_start", "content_block_delta"));
  EXPECT_THAT(events, HasSubstr(R"({"type":"thinking_delta","thinking":"hm"})"));
  EXPECT_THAT(events, HasSubstr(R"("content_block":{"type":"tool_use","id":"call_1","name":"f","input":{}})"));
  EXPECT_THAT(events, HasSubstr(R"({"type":"input_json_delta","partial_json":"1}"})"));
  EXPECT_THAT(events, HasSubstr(R"({"type":"text_delta","text":"l>g"})"));
  EXPECT_THAT(parsed->writer->End(kUsage), HasSubstr(R"("stop_reason":"tool_use")"));
}

TEST(MessagesAnswer, Errors) {
  EXPECT_EQ(Parsed(MessagesDialect().ErrorBody(404, "no", "model")),
            Parsed(R"({"type":"error","error":{"type":"not_found_error","message":"no"}})"));
  EXPECT_THAT(Names(Parse(Body(kHello))->writer->Failure(Internal("broke"))), ElementsAre("error"));
}

}  // namespace
}  // namespace loramux::messages_dialect_test
