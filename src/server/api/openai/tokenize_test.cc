#include "server/api/openai/tokenize.h"

#include "http/json_reader.h"
#include "server/server_fixture.h"

namespace loramux::tokenize_test {
namespace {

class TokenizeTest : public testing::Test {
 protected:
  TokenizeTest() : service_([](const GenerationRequest&) { return Say(""); }) {}
  Json Post(Result<std::string> body) {
    EXPECT_TRUE(body.ok()) << body.error().message;
    return body.ok() ? Json::parse(*body) : Json();
  }
  Result<std::string> TokenizeText(std::string_view body) {
    return AnswerNow(Tokenize, fixture_.Context(service_), limits_, body);
  }
  Result<std::string> DetokenizeText(std::string_view body) {
    return AnswerNow(Detokenize, fixture_.Context(service_), limits_, body);
  }

  ServingFixture fixture_;
  TextLimits limits_{.max_model_len = 99, .max_bytes = 4096};
  ScriptedService service_;
};

TEST_F(TokenizeTest, TokenizesAsTheCompletionEndpointsDo) {
  const Json chat = Post(TokenizeText(R"({"model":"sql","messages":[{"role":"user","content":"hi"}]})"));
  EXPECT_EQ(chat["count"], 20);  // <s>[user]hi[assistant], as in the prompt_tokens of ServerTest.Chat
  EXPECT_EQ(chat["tokens"][0], kBosToken);
  EXPECT_EQ(chat["max_model_len"], 99);
  EXPECT_TRUE(chat["token_strs"].is_null());
  const Json bare =
      Post(TokenizeText(R"({"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false})"));
  EXPECT_EQ(bare["count"], 9);
  const Json text = Post(TokenizeText(R"({"prompt":"hi","return_token_strs":true,"add_special_tokens":false})"));
  EXPECT_EQ(DumpJson(text["tokens"]), "[104,105]");
  EXPECT_EQ(DumpJson(text["token_strs"]), R"(["h","i"])");
}

TEST_F(TokenizeTest, Detokenizes) {
  EXPECT_EQ(Post(DetokenizeText(R"({"model":"base","tokens":[104,105]})"))["prompt"], "hi");
  EXPECT_EQ(Post(DetokenizeText(R"({"tokens":[256,104]})"))["prompt"], "<s>h");
  EXPECT_EQ(Post(DetokenizeText(R"({"tokens":[256,104],"skip_special_tokens":true})"))["prompt"], "h");
  EXPECT_EQ(Post(DetokenizeText(R"({"tokens":[]})"))["prompt"], "");
}

TEST_F(TokenizeTest, Errors) {
  EXPECT_EQ(TokenizeText(R"({"model":"no","prompt":"x"})").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(DetokenizeText(R"({"model":"no","tokens":[1]})").error().param, "model");
  // the id is in the model's vocabulary, but not in the tokenizer's
  EXPECT_EQ(DetokenizeText(R"({"tokens":[258]})").error().param, "tokens[0]");
  limits_.max_bytes = 8;
  EXPECT_TRUE(TokenizeText(R"({"prompt":"12345678"})").ok());
  EXPECT_EQ(TokenizeText(R"({"prompt":"123456789"})").error().message,
            "`prompt`: expected at most 8 bytes of text (--max-tokenize-bytes), found 9");
  EXPECT_EQ(TokenizeText(R"({"messages":[{"role":"user","content":"x"}]})").error().param, "messages");
  EXPECT_NE(TokenizeText(R"({"prompt":")" + std::string(49, 'x') + R"("})").error().message.find("49; --max-tokenize"),
            std::string::npos);
  EXPECT_FALSE(DetokenizeText(R"({"tokens":[1,1,1,1,1,1,1,1,1]})").ok());
  limits_.max_bytes = 4096;
  EXPECT_EQ(TokenizeText(R"({"messages":[{"role":"bad","content":"x"}]})").error().param, "messages");
  ServingContext context = fixture_.Context(service_);
  const ChatTemplate& none = ChatTemplate::None();
  context.chat_template = &none;
  EXPECT_FALSE(AnswerNow(Tokenize, context, limits_, R"({"messages":[{"role":"user","content":"x"}]})").ok());
}

}  // namespace
}  // namespace loramux::tokenize_test
