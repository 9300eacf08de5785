#include "server/api/responses/responses_dialect.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "http/json_reader.h"
#include "server/api/responses/responses_request.h"

namespace loramux::responses_dialect_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

Json Parsed(std::string_view text) {
  auto json = ParseJson(text);
  EXPECT_TRUE(json.ok()) << text;
  return json.ok() ? *json : Json();
}

std::string Body(const std::string& input, const std::string& more = "") {
  return R"({"model":"m","input":)" + input + (more.empty() ? "" : "," + more) + "}";
}

ResponsesChat Translated(const std::string& body) {
  auto chat = ChatOfResponses(Parsed(body));
  EXPECT_TRUE(chat.ok()) << body << ": " << chat.error().message;
  return chat.ok() ? *chat : ResponsesChat{Json::object(), Json::object()};
}

Result<DialectRequest> Parse(const std::string& body) {
  return ResponsesDialect().Parse(body, {.limits = {}, .number = "07", .created = 5});
}

std::string Refusal(const std::string& body) {
  const auto parsed = Parse(body);
  return parsed.ok() ? "accepted" : parsed.error().param + " " + parsed.error().message;
}

TEST(ResponsesRequest, TextsAndInstructions) {
  EXPECT_EQ(Translated(Body(R"("hi")", R"("instructions":"be kind")")).chat["messages"],
            Parsed(R"([{"role":"system","content":"be kind"},{"role":"user","content":"hi"}])"));
  EXPECT_EQ(Translated(Body(R"([{"role":"developer","content":"d"},{"type":"message","role":"user","content":
                               [{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
                               {"type":"message","role":"assistant","id":"x","status":"completed","content":
                               [{"type":"output_text","text":"c","annotations":[]}]},{"role":"user","content":"e"}])"))
                .chat["messages"],
            Parsed(
                R"([{"role":"developer","content":"d"},
              {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
                       {"role":"assistant","content":"c"},{"role":"user","content":"e"}])"));
}

// Items of one turn of the assistant are one chat message.
TEST(ResponsesRequest, CallsAndReasoningBelongToAMessage) {
  const std::string call = R"({"type":"function_call","call_id":"c1","name":"f","arguments":"{\"a\":1}"})";
  const Json messages =
      Translated(Body(R"([{"role":"user","content":"q"},
                          {"type":"reasoning","id":"r","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
                          {"role":"assistant","content":"I look"},)" +
                      call + "," + call + R"(,{"type":"function_call_output","call_id":"c1","output":"4"},
                          {"role":"assistant","content":"first"},{"role":"assistant","content":"second"}])"))
          .chat["messages"];
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[1]["reasoning_content"], "hm");
  EXPECT_EQ(messages[1]["content"], "I look");
  EXPECT_EQ(messages[1]["tool_calls"].size(), 2u);
  EXPECT_EQ(messages[1]["tool_calls"][0], Parsed(R"({"id":"c1","type":"function","function":
                                                     {"name":"f","arguments":"{\"a\":1}"}})"));
  EXPECT_EQ(messages[2], Parsed(R"({"role":"tool","tool_call_id":"c1","content":"4"})"));
  EXPECT_EQ(messages[3]["content"], "first");
  EXPECT_EQ(messages[4]["content"], "second");
}

TEST(ResponsesRequest, OtherFieldsAreTranslatedOrPassedOn) {
  const ResponsesChat translated = Translated(Body(R"("hi")", R"("max_output_tokens":7,"temperature":0.5,"seed":3,
      "store":true,"metadata":{"k":"v"},"tools":[{"type":"function","name":"f","parameters":{},"strict":true}],
      "tool_choice":{"type":"function","name":"f"},"reasoning":{"effort":"low","summary":"auto"},
      "text":{"format":{"type":"json_schema","name":"s","schema":{},"strict":true}},
      "include":["message.output_text.logprobs"],"top_logprobs":2,"user":"u")"));
  const Json& chat = translated.chat;
  EXPECT_EQ(chat["max_completion_tokens"], 7);
  EXPECT_EQ(chat["temperature"], 0.5);
  EXPECT_EQ(chat["seed"], 3);
  EXPECT_EQ(chat["tools"], Parsed(R"([{"type":"function","function":{"name":"f","parameters":{},"strict":true}}])"));
  EXPECT_EQ(chat["tool_choice"], Parsed(R"({"type":"function","function":{"name":"f"}})"));
  EXPECT_EQ(chat["response_format"],
            Parsed(R"({"type":"json_schema","json_schema":{"name":"s","schema":{},"strict":true}})"));
  EXPECT_EQ(chat["reasoning_effort"], "low");
  EXPECT_EQ(chat["logprobs"], true);
  EXPECT_EQ(chat["top_logprobs"], 2);
  EXPECT_FALSE(chat.contains("input"));
  EXPECT_EQ(translated.echoed["metadata"], Parsed(R"({"k":"v"})"));
  EXPECT_EQ(translated.echoed["max_output_tokens"], 7);
  EXPECT_EQ(translated.echoed["store"], false);
  EXPECT_EQ(translated.echoed["top_p"], 1.0);
}

TEST(ResponsesRequest, EveryReasoningOfATurnIsKept) {
  const auto reasoning = [](const std::string& text) {
    return R"({"type":"reasoning","id":"r","summary":[],"content":[{"type":"reasoning_text","text":")" + text +
           R"("}]})";
  };
  const Json messages = Translated(Body(R"([{"role":"user","content":"q"},)" + reasoning("a") + "," + reasoning("b") +
                                        R"(,{"role":"assistant","content":"I look"},)" + reasoning("c") +
                                        R"(,{"type":"function_call","call_id":"c1","name":"f","arguments":""}])"))
                            .chat["messages"];
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[1]["reasoning_content"], "a\nb");
  EXPECT_EQ(messages[1]["content"], "I look");
  EXPECT_EQ(messages[2]["reasoning_content"], "c");
  EXPECT_EQ(messages[2]["tool_calls"].size(), 1u);
}

// What Codex sends: tools that the model is not offered, and what they did in earlier turns.
TEST(ResponsesRequest, ToolsOfOtherTypesAreLeftOut) {
  const std::string tools = R"("tools":[{"type":"function","name":"f","parameters":{}},
      {"type":"custom","name":"apply_patch","format":{"type":"grammar"}},{"type":"web_search","external_web_access":true},
      {"type":"local_shell"},{"type":"namespace","name":"mcp\nx","tools":[{"type":"function","name":"g"}]}],
      "tool_choice":"auto","parallel_tool_calls":true,"text":{"verbosity":"low"})";
  const auto parsed = Parse(Body(R"("hi")", tools));
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_THAT(parsed->request.left_out_tools,
              ElementsAre("custom;name=apply_patch", "web_search", "local_shell", "namespace;name=mcp?x"));
  const Json context = Parsed(parsed->request.chat.template_context);
  ASSERT_EQ(context["tools"].size(), 1u);
  EXPECT_EQ(context["tools"][0]["function"]["name"], "f");
  EXPECT_EQ(context["verbosity"], "low");
  EXPECT_EQ(Refusal(Body(R"("hi")", R"("tools":[{"type":"web_search"}],"tool_choice":"auto")")), "accepted");
  EXPECT_THAT(Refusal(Body(R"("hi")", R"("tools":[{"type":"web_search"}],"tool_choice":"required")")),
              HasSubstr("`tool_choice`"));
}

TEST(ResponsesRequest, WhatOtherToolsDidIsText) {
  const Json messages =
      Translated(Body(R"([{"role":"user","content":"q"},{"type":"message","role":"assistant","content":
      [{"type":"output_text","text":"I patch"}]},
      {"type":"custom_tool_call","id":"ctc_1","status":"completed","call_id":"c1","name":"apply_patch","input":"+x"},
      {"type":"local_shell_call","id":null,"call_id":"c2","action":{"type":"exec","command":["ls"]}},
      {"type":"custom_tool_call_output","call_id":"c1","output":"done"},
      {"type":"local_shell_call_output","call_id":"c2","output":"a.txt"},
      {"type":"web_search_call","action":{"type":"search","query":"w"}},
      {"type":"function_call","call_id":"c3","name":"f","arguments":"{}"},
      {"type":"tool_search_call","arguments":{}}])"))
          .chat["messages"];
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[1]["content"], Parsed(R"([{"type":"text","text":"I patch"},
      {"type":"text","text":"{\"type\":\"custom_tool_call\",\"call_id\":\"c1\",\"name\":\"apply_patch\",\"input\":\"+x\"}"},
      {"type":"text","text":"{\"type\":\"local_shell_call\",\"call_id\":\"c2\",\"action\":{\"type\":\"exec\",\"command\":[\"ls\"]}}"}])"));
  EXPECT_EQ(messages[2]["role"], "user");
  EXPECT_EQ(messages[2]["content"].size(), 2u);
  EXPECT_THAT(messages[2]["content"][1]["text"].get<std::string>(), HasSubstr("a.txt"));
  EXPECT_THAT(messages[3]["content"].get<std::string>(), HasSubstr("web_search_call"));
  EXPECT_EQ(messages[3]["tool_calls"].size(), 1u);
  EXPECT_THAT(messages[4]["content"].get<std::string>(), HasSubstr("tool_search_call"));
  // The result of a function stays next to its call.
  const Json both = Translated(Body(R"([{"role":"user","content":"q"},{"type":"custom_tool_call","call_id":"c1"},
      {"type":"function_call","call_id":"c2","name":"f","arguments":"{}"},
      {"type":"custom_tool_call_output","call_id":"c1","output":"a"},
      {"type":"function_call_output","call_id":"c2","output":"b"}])"))
                        .chat["messages"];
  ASSERT_EQ(both.size(), 4u);
  EXPECT_EQ(both[2]["role"], "tool");
  EXPECT_EQ(both[3]["role"], "user");
}

TEST(ResponsesRequest, WhatNeedsAStoreIsRefused) {
  for (const char* field :
       {R"("previous_response_id":"r")", R"("conversation":"c")", R"("background":true)", R"("prompt":{"id":"p"})"}) {
    EXPECT_THAT(Refusal(Body(R"("hi")", field)), HasSubstr("keeps no responses")) << field;
  }
  EXPECT_EQ(Refusal(Body(R"("hi")", R"("background":false,"previous_response_id":null,"store":false)")), "accepted");
}

TEST(ResponsesRequest, ErrorsNameTheFieldsOfThisApi) {
  EXPECT_THAT(Refusal(R"({"model":"m"})"), HasSubstr("input `input`"));
  EXPECT_THAT(Refusal(Body(R"([{"role":"user","content":[{"type":"input_image"}]}])")),
              AllOf(HasSubstr("input[0].content[0].type"), HasSubstr("input_image")));
  EXPECT_THAT(Refusal(Body(R"([{"type":"item_reference","id":"x"}])")), HasSubstr("input[0].type"));
  EXPECT_THAT(Refusal(Body(R"([{"type":"function_call","call_id":"c","name":"f","arguments":"[1]"}])")),
              HasSubstr("input[0].arguments"));
  EXPECT_THAT(Refusal(Body(R"("hi")", R"("max_output_tokens":0)")), HasSubstr("max_output_tokens `max_output_tokens`"));
  EXPECT_THAT(Refusal(Body(R"("hi")", R"("tools":[{"name":"x"}])")), HasSubstr("tools[0].type"));
  EXPECT_EQ(Refusal(Body(R"("hi")", R"("tools":[{"type":"function","name":"f"}])")), "accepted");
  EXPECT_THAT(Refusal(Body(R"("hi")", R"("truncation":"auto")")), HasSubstr("`truncation`"));
  EXPECT_THAT(Refusal(Body(R"("hi")", R"("text":{"verbosity":7})")), HasSubstr("text.verbosity"));
  EXPECT_THAT(Refusal(Body(R"("hi")", R"("include":["file_search_call.results"])")), HasSubstr("`include`"));
  EXPECT_THAT(Refusal(Body(R"("hi")", R"("metadata":{"k":1})")), HasSubstr("`metadata`"));
  EXPECT_THAT(Refusal(Body(R"("hi")", R"("stop":"x")")), HasSubstr("`stop`"));
  EXPECT_THAT(Refusal(Body(R"("hi")", R"("top_logprobs":99)")), HasSubstr("`top_logprobs`"));
}

ChoiceOutput Output(std::string text, FinishReason finish = FinishReason::kNone) {
  ChoiceOutput output;
  output.text = std::move(text);
  output.finish = finish;
  return output;
}
constexpr Usage kUsage{.prompt_tokens = 10, .completion_tokens = 3, .cached_tokens = 4};

TEST(ResponsesAnswer, WholeBody) {
  auto parsed = Parse(Body(R"("hi")", R"("metadata":{"k":"v"},"temperature":0)"));
  const ChoiceOutput choices[] = {Output("hello", FinishReason::kStop)};
  const Json body = Parsed(parsed->writer->Body(choices, kUsage));
  EXPECT_EQ(body["id"], "resp_07");
  EXPECT_EQ(body["object"], "response");
  EXPECT_EQ(body["created_at"], 5);
  EXPECT_EQ(body["status"], "completed");
  EXPECT_EQ(body["metadata"], Parsed(R"({"k":"v"})"));
  EXPECT_EQ(body["temperature"], 0);
  EXPECT_EQ(body["output"], Parsed(R"([{"id":"msg_070","type":"message","status":"completed","role":"assistant",
                        "content":[{"type":"output_text","text":"hello","annotations":[],"logprobs":[]}]}])"));
  EXPECT_EQ(body["usage"], Parsed(R"({"input_tokens":10,"input_tokens_details":{"cached_tokens":4},"output_tokens":3,
                                      "output_tokens_details":{"reasoning_tokens":0},"total_tokens":13})"));
}

TEST(ResponsesAnswer, AnAnswerThatWasCutOff) {
  auto parsed = Parse(Body(R"("hi")"));
  const ChoiceOutput choices[] = {Output("hel", FinishReason::kLength)};
  const Json body = Parsed(parsed->writer->Body(choices, kUsage));
  EXPECT_EQ(body["status"], "incomplete");
  EXPECT_EQ(body["incomplete_details"], Parsed(R"({"reason":"max_output_tokens"})"));
}

// The events of a stream, whose numbers must count from `next`.
std::vector<std::string> Types(std::string_view events, std::int64_t& next) {
  std::vector<std::string> types;
  while (!events.empty()) {
    const auto end = events.find("\n\n");
    const auto data = events.find("data: ") + 6;
    const Json event = Parsed(events.substr(data, end - data));
    types.push_back(event.value("type", ""));
    EXPECT_EQ(event.value("sequence_number", -1), next++);
    EXPECT_TRUE(events.starts_with("event: " + types.back() + "\n"));
    events.remove_prefix(end + 2);
  }
  return types;
}

TEST(ResponsesAnswer, Stream) {
  auto parsed = Parse(Body(R"("hi")", R"("stream":true)"));
  AnswerWriter& writer = *parsed->writer;
  std::int64_t next = 0;
  EXPECT_THAT(Types(writer.Delta(Output("he"), kUsage), next),
              ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                          "response.content_part.added", "response.output_text.delta"));
  EXPECT_THAT(Types(writer.Delta(Output("y", FinishReason::kStop), kUsage), next),
              ElementsAre("response.output_text.delta"));
  EXPECT_EQ(writer.held_bytes(), 3u);
  const std::string end = writer.End(kUsage);
  EXPECT_THAT(Types(end, next), ElementsAre("response.output_text.done", "response.content_part.done",
                                            "response.output_item.done", "response.completed"));
  EXPECT_THAT(end, HasSubstr(R"("text":"hey")"));
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
  output.called_tools = true;
  return output;
}

TEST(ResponsesAnswer, CallsAndReasoningAreItems) {
  const ChoiceOutput choices[] = {Calls()};
  const Json output = Parsed(Parse(Body(R"("hi")"))->writer->Body(choices, kUsage))["output"];
  ASSERT_EQ(output.size(), 4u);
  EXPECT_EQ(output[0], Parsed(R"({"id":"rs_070","type":"reasoning","summary":[],
      "content":[{"type":"reasoning_text","text":"hm"}],"status":"completed"})"));
  EXPECT_EQ(output[1]["content"][0]["text"], "I look");
  EXPECT_EQ(output[2], Parsed(R"({"id":"fc_072","type":"function_call","status":"completed","call_id":"call_1",
                                  "name":"f","arguments":"{\"a\":1}"})"));
  EXPECT_EQ(output[3]["content"][0]["text"], "<tool>g");
}

TEST(ResponsesAnswer, CallsAndReasoningInAStream) {
  auto parsed = Parse(Body(R"("hi")", R"("stream":true)"));
  std::int64_t next = 0;
  const std::string events = parsed->writer->Delta(Calls(), kUsage);
  const auto types = Types(events, next);
  const auto count = [&](const std::string& type) {
    return std::count(types.begin(), types.end(), "response." + type);
  };
  EXPECT_EQ(count("output_item.added"), 5);
  EXPECT_EQ(count("output_item.done"), 4);  // the last text goes on
  EXPECT_EQ(count("reasoning_text.delta"), 1);
  EXPECT_EQ(count("function_call_arguments.delta"), 2);
  EXPECT_EQ(count("function_call_arguments.done"), 2);
  EXPECT_THAT(events, HasSubstr(R"("name":"f","arguments":"{\"a\":1}")"));
  EXPECT_THAT(events, HasSubstr(R"("delta":"l>g")"));
  const std::string end = parsed->writer->End(kUsage);
  EXPECT_THAT(end, HasSubstr("event: response.completed"));
  EXPECT_THAT(end, HasSubstr(R"("type":"function_call","status":"completed","call_id":"call_1")"));
  EXPECT_THAT(end, HasSubstr(R"("type":"function_call","status":"incomplete","call_id":"call_2")"));
}

TEST(ResponsesAnswer, Failure) {
  auto parsed = Parse(Body(R"("hi")", R"("stream":true)"));
  std::int64_t next = 0;
  const std::string events = parsed->writer->Failure(Internal("broke"));
  EXPECT_EQ(Types(events, next).back(), "response.failed");
  EXPECT_THAT(events, HasSubstr(R"("error":{"code":"server_error","message":"broke"})"));
}

}  // namespace
}  // namespace loramux::responses_dialect_test
