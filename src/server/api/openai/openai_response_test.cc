#include "server/api/openai/openai_response.h"

#include <limits>

#include <gmock/gmock.h>

#include "http/json_reader.h"

namespace loramux::openai_response_test {
namespace {

const ResponseHead kChatHead{Endpoint::kChat, "chatcmpl-1", 1700000000, {"sql"}};
const ResponseHead kTextHead{Endpoint::kCompletion, "cmpl-1", 1700000000, {"sql"}};

Json Parse(const std::string& text) {
  auto json = ParseJson(text);
  EXPECT_TRUE(json.ok()) << text;
  return json.ok() ? *json : Json();
}

Json ParseEvent(const std::string& event) {
  EXPECT_TRUE(event.starts_with("data: ") && event.ends_with("\n\n")) << event;
  return Parse(event.substr(6));
}

ChoiceOutput Choice(std::string text) {
  ChoiceOutput choice;
  choice.text = std::move(text);
  choice.finish = FinishReason::kStop;
  return choice;
}

TEST(OpenAiResponse, ChatBody) {
  ChoiceOutput choice = Choice("hi");
  choice.stop_reason = "END";
  EXPECT_EQ(
      CompletionBody(kChatHead, std::span(&choice, 1), {5, 2, 3}),
      R"({"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"sql","choices":[{"index":0,)"
      R"("message":{"role":"assistant","content":"hi","refusal":null},"logprobs":null,"finish_reason":"stop","stop_reason":"END"}],)"
      R"("usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3}}})");
}

TEST(OpenAiResponse, CompletionBodyWithLogprobs) {
  ChoiceOutput choice = Choice("äb");
  choice.finish = FinishReason::kLength;
  choice.stop_reason = TokenId{7};
  choice.wants_logprobs = true;
  choice.text_offset = 4;
  choice.logprobs = {{{1, "ä", -0.5f}, {{2, "x", -0.25f}, {1, "ä", -0.5f}}},
                     {{3, "b", -std::numeric_limits<float>::infinity()}, {{4, "y", -1.0f}}}};
  const Json body = Parse(CompletionBody(kTextHead, std::span(&choice, 1), {}));
  EXPECT_EQ(body["object"], "text_completion");
  const Json& first = body["choices"][0];
  EXPECT_EQ(first["text"], "äb");
  EXPECT_EQ(first["finish_reason"], "length");
  EXPECT_EQ(first["stop_reason"], 7);
  EXPECT_EQ(DumpJson(first["logprobs"]), R"({"text_offset":[4,5],"token_logprobs":[-0.5,-9999.0],"tokens":["ä","b"],)"
                                         R"("top_logprobs":[{"x":-0.25,"ä":-0.5},{"y":-1.0,"b":-9999.0}]})");
}

TEST(OpenAiResponse, ChatLogprobs) {
  ChoiceOutput choice = Choice("ä");
  choice.wants_logprobs = true;
  choice.logprobs = {{{1, "ä", -0.5f}, {{2, "x", -0.25f}}}};
  const Json body = Parse(CompletionBody(kChatHead, std::span(&choice, 1), {}));
  EXPECT_EQ(DumpJson(body["choices"][0]["logprobs"]),
            R"({"content":[{"token":"ä","logprob":-0.5,"bytes":[195,164],)"
            R"("top_logprobs":[{"token":"x","logprob":-0.25,"bytes":[120]}]}],"refusal":null})");
}

// Parts of characters all read U+FFFD, but they are different tokens.
TEST(OpenAiResponse, PartsOfCharactersKeepTheirBytes) {
  const std::string part = "\xEF\xBF\xBD";
  ChoiceOutput choice = Choice("");
  choice.wants_logprobs = true;
  choice.logprobs = {{{1, part, -0.5f, "\xC3"}, {{1, part, -0.5f, "\xC3"}, {2, part, -1.0f, "\xC4"}}},
                     {{3, part, -0.5f, "\xA4"}, {{4, part, -0.25f}}},
                     {{5, "b", -0.5f}, {}}};
  const Json chat = Parse(CompletionBody(kChatHead, std::span(&choice, 1), {}))["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(DumpJson(chat[0]["bytes"]), "[195]");
  EXPECT_EQ(DumpJson(chat[0]["top_logprobs"][1]["bytes"]), "[196]");
  EXPECT_EQ(DumpJson(chat[1]["bytes"]), "[164]");
  EXPECT_EQ(DumpJson(chat[1]["top_logprobs"][0]["bytes"]), "[239,191,189]");  // the character U+FFFD itself
  const Json text = Parse(CompletionBody(kTextHead, std::span(&choice, 1), {}))["choices"][0]["logprobs"];
  EXPECT_EQ(DumpJson(text["tokens"]), R"(["bytes:\\xc3","bytes:\\xa4","b"])");
  EXPECT_EQ(DumpJson(text["top_logprobs"][0]), R"({"bytes:\\xc3":-0.5,"bytes:\\xc4":-1.0})");
  EXPECT_EQ(DumpJson(text["text_offset"]), "[0,1,1]");  // the first two are one character
}

TEST(OpenAiResponse, TokensOfEqualTextAreDifferentAlternatives) {
  ChoiceOutput choice = Choice("");
  choice.wants_logprobs = true;
  choice.logprobs = {{{9, "a", -2.0f}, {{7, "a", -0.25f}, {8, "token_id:9", -0.5f}}},
                     {{8, "a", -1.0f}, {{7, "a", -0.5f}, {8, "a", -1.0f}}}};
  const Json text = Parse(CompletionBody(kTextHead, std::span(&choice, 1), {}))["choices"][0]["logprobs"];
  EXPECT_EQ(DumpJson(text["top_logprobs"][0]), R"({"a":-0.25,"token_id:9":-0.5,"token_id:9_":-2.0})");
  EXPECT_EQ(DumpJson(text["top_logprobs"][1]), R"({"a":-0.5,"token_id:8":-1.0})");
  EXPECT_EQ(DumpJson(text["tokens"]), R"(["token_id:9_","token_id:8"])");
}

TEST(OpenAiResponse, ChatEvents) {
  EventWriter writer(kChatHead, false);
  ChoiceOutput first;
  first.index = 1;
  EXPECT_EQ(
      writer.Role(first, nullptr),
      "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"sql\","
      "\"choices\":[{\"index\":1,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
      "\"finish_reason\":null}]}\n\n");
  ChoiceOutput delta;
  delta.text = "line\nbreak";
  const Json event = ParseEvent(writer.Delta(delta, nullptr));
  EXPECT_EQ(DumpJson(event["choices"][0]["delta"]), R"({"content":"line\nbreak"})");
  EXPECT_TRUE(event["choices"][0]["finish_reason"].is_null());
  EXPECT_FALSE(event.contains("usage"));
}

// Once, in the first event.
TEST(OpenAiResponse, TheWeightVersionComesFirst) {
  ResponseHead head = kTextHead;
  head.served.weight_version = "7:ab";
  const ChoiceOutput choice = Choice("x");
  const Json body = Parse(CompletionBody(head, std::span(&choice, 1), {}));
  EXPECT_EQ(body["weight_version"], "7:ab");
  EventWriter writer(head, false);
  EXPECT_EQ(ParseEvent(writer.Delta(choice, nullptr))["weight_version"], "7:ab");
  EXPECT_FALSE(ParseEvent(writer.Delta(choice, nullptr)).contains("weight_version"));
}

// A parser that holds text back still passes the ids on; they come once.
TEST(OpenAiResponse, IdsComeWithTheFirstOfTheEvents) {
  EventWriter writer(kChatHead, false);
  ChoiceOutput silent;
  silent.events.emplace();
  EXPECT_EQ(writer.Delta(silent, nullptr), "");
  silent.token_ids = {5};
  EXPECT_EQ(DumpJson(ParseEvent(writer.Delta(silent, nullptr))["choices"][0]["token_ids"]), "[5]");
  ChoiceOutput both;
  both.token_ids = {6, 7};
  both.events = {{.kind = OutputEvent::Kind::kReasoning, .text = "why"},
                 {.kind = OutputEvent::Kind::kContent, .text = "x"}};
  const std::string events = writer.Delta(both, nullptr);
  const std::size_t second = events.find("data: ", 1);
  ASSERT_NE(second, std::string::npos);
  EXPECT_EQ(DumpJson(ParseEvent(events.substr(0, second))["choices"][0]["token_ids"]), "[6,7]");
  EXPECT_FALSE(ParseEvent(events.substr(second))["choices"][0].contains("token_ids"));
}

TEST(OpenAiResponse, UsageInEvents) {
  EventWriter writer(kTextHead, true);
  const Usage usage{3, 4, 0};
  EXPECT_TRUE(ParseEvent(writer.Delta(Choice("x"), nullptr))["usage"].is_null());
  EXPECT_EQ(ParseEvent(writer.Delta(Choice("x"), &usage))["usage"]["total_tokens"], 7);
  const Json last = ParseEvent(writer.FinalUsage(usage));
  EXPECT_EQ(last["object"], "text_completion");
  EXPECT_TRUE(last["choices"].is_array() && last["choices"].empty());
  EXPECT_EQ(last["usage"]["completion_tokens"], 4);
}

TEST(OpenAiResponse, Errors) {
  EXPECT_EQ(ParseEvent(ErrorEvent(Internal("\xff broke")))["error"]["message"], "\xEF\xBF\xBD broke");
}

}  // namespace
}  // namespace loramux::openai_response_test
