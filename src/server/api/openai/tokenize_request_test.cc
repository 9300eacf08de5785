#include "server/api/openai/tokenize_request.h"

#include <gmock/gmock.h>

#include "http/json_reader.h"

namespace loramux::tokenize_request_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const RequestLimits kLimits{1000};

TEST(TokenizeRequest, Prompt) {
  const auto request = ParseTokenizeRequest(R"({"model":"m","prompt":"","return_token_strs":true,"unknown":[1]})", {});
  ASSERT_TRUE(request.ok()) << request.error().message;
  EXPECT_EQ(request->model, "m");
  EXPECT_EQ(request->prompt, "");
  EXPECT_FALSE(request->chat);
  EXPECT_TRUE(request->add_special_tokens);
  EXPECT_TRUE(request->return_token_strs);
  EXPECT_FALSE(ParseTokenizeRequest(R"({"prompt":"x","add_special_tokens":false})", {})->add_special_tokens);
  EXPECT_EQ(ParseTokenizeRequest(R"({"prompt":"x","model":null})", {})->model, "");
}

TEST(TokenizeRequest, Messages) {
  const auto request = ParseTokenizeRequest(
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"add_generation_prompt":false})", {});
  ASSERT_TRUE(request.ok()) << request.error().message;
  ASSERT_TRUE(request->chat);
  EXPECT_EQ(request->chat->template_context,
            R"({"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]})");
  EXPECT_FALSE(request->chat->add_generation_prompt);
  EXPECT_FALSE(request->add_special_tokens);
}

TEST(TokenizeRequest, ErrorsNameTheField) {
  const struct {
    const char* body;
    const char* param;
    const char* found;
  } cases[] = {
      {R"({})", "prompt", "found nothing"},
      {R"({"prompt":5})", "prompt", "found 5"},
      {R"({"prompt":"a","messages":[]})", "prompt", "found both"},
      {R"({"messages":[]})", "messages", "at least one message"},
      {R"({"messages":[{"role":"user","content":"x"}],"chat_template":"{{x}}"})", "chat_template", "does not support"},
      {R"({"prompt":"a","model":1})", "model", "found 1"},
      {R"({"prompt":"a","return_token_strs":"yes"})", "return_token_strs", "true or false"},
      {R"([])", "", "a JSON object"},
      {"{", "", "not valid JSON"}};
  for (const auto& [body, param, found] : cases) {
    const auto request = ParseTokenizeRequest(body, {});
    ASSERT_FALSE(request.ok()) << body;
    EXPECT_EQ(request.error().param, param) << body;
    EXPECT_THAT(request.error().message, HasSubstr(found)) << body;
  }
}

TEST(DetokenizeRequest, Tokens) {
  const auto request = ParseDetokenizeRequest(R"({"model":"m","tokens":[1,2.0,999]})", kLimits);
  ASSERT_TRUE(request.ok()) << request.error().message;
  EXPECT_THAT(request->tokens, ElementsAre(1, 2, 999));
  EXPECT_FALSE(request->skip_special_tokens);
  EXPECT_TRUE(ParseDetokenizeRequest(R"({"tokens":[]})", kLimits)->tokens.empty());
}

TEST(DetokenizeRequest, ErrorsNameTheField) {
  for (const auto& [body, param] :
       {std::pair(R"({"model":"m"})", "tokens"), std::pair(R"({"tokens":"1"})", "tokens"),
        std::pair(R"({"tokens":[1,1000]})", "tokens[1]"), std::pair(R"({"tokens":[-1]})", "tokens[0]"),
        std::pair(R"({"tokens":[[1]]})", "tokens[0]")}) {
    const auto request = ParseDetokenizeRequest(body, kLimits);
    ASSERT_FALSE(request.ok()) << body;
    EXPECT_EQ(request.error().param, param) << body;
  }
}

TEST(TokenizeRequest, Responses) {
  const TokenId tokens[] = {5, 7};
  EXPECT_EQ(TokenizeResponse(tokens, 100, std::nullopt),
            R"({"count":2,"max_model_len":100,"tokens":[5,7],"token_strs":null})");
  EXPECT_EQ(TokenizeResponse(tokens, 100, std::vector<std::string>{"a", "\xff"}),
            "{\"count\":2,\"max_model_len\":100,\"tokens\":[5,7],\"token_strs\":[\"a\",\"\xEF\xBF\xBD\"]}");
  EXPECT_EQ(TokenizeResponse({}, 1, std::nullopt), R"({"count":0,"max_model_len":1,"tokens":[],"token_strs":null})");
  EXPECT_EQ(DetokenizeResponse("a\n"), R"({"prompt":"a\n"})");
}

}  // namespace
}  // namespace loramux::tokenize_request_test
