#include "server/openai/embeddings_dialect.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

namespace loramux::embeddings_dialect_test {
namespace {

using testing::HasSubstr;

const RequestLimits kLimits{.vocab_size = 1000, .max_sequences = 3, .max_tokens = 8};

std::string Body(const std::string& more) { return R"({"model":"m",)" + more + "}"; }

OpenAiRequest Good(const std::string& more) {
  auto request = ParseEmbeddingRequest(Body(more), kLimits);
  EXPECT_TRUE(request.ok()) << request.error().message;
  return std::move(request).value();
}

TEST(EmbeddingsRequest, InputsAreTextsOrTokens) {
  using Prompts = std::vector<Prompt>;
  EXPECT_EQ(Good(R"("input":"a")").prompts, (Prompts{"a"}));
  EXPECT_EQ(Good(R"("input":["a","b"])").prompts, (Prompts{"a", "b"}));
  EXPECT_EQ(Good(R"("input":[1,2])").prompts, (Prompts{std::vector<TokenId>{1, 2}}));
  EXPECT_EQ(Good(R"("input":[[1],[2,3]])").prompts, (Prompts{std::vector<TokenId>{1}, std::vector<TokenId>{2, 3}}));
}

TEST(EmbeddingsRequest, WantsNoTokenAndItsOwnFields) {
  const OpenAiRequest plain = Good(R"("input":"a")");
  EXPECT_EQ(plain.max_tokens, 0);
  EXPECT_EQ(plain.embedding->dimensions, 0);
  EXPECT_EQ(plain.embedding->normalize, std::nullopt);
  EXPECT_EQ(plain.truncate_prompt_tokens, std::nullopt);
  EXPECT_FALSE(plain.embedding->base64);
  EXPECT_TRUE(plain.add_special_tokens);
  const OpenAiRequest all =
      Good(R"("input":"a","encoding_format":"base64","dimensions":3,"normalize":false,"truncate_prompt_tokens":5,
              "add_special_tokens":false,"user":"u","priority":-2,"cache_salt":"s","lora_path":"x")");
  EXPECT_TRUE(all.embedding->base64);
  EXPECT_EQ(all.embedding->dimensions, 3);
  EXPECT_EQ(all.embedding->normalize, false);
  EXPECT_EQ(all.truncate_prompt_tokens, 5);
  EXPECT_FALSE(all.add_special_tokens);
  EXPECT_EQ(all.priority, -2);
  EXPECT_EQ(all.cache_salt, "s");
  EXPECT_EQ(all.adapter->name, "x");
  EXPECT_EQ(Good(R"("input":"a","truncate_prompt_tokens":-1)").truncate_prompt_tokens, -1);
}

TEST(EmbeddingsRequest, LongTokensAreRefusedOrCut) {
  const std::string long_input = R"("input":[1,2,3,4,5,6,7,8,9])";
  const auto refused = ParseEmbeddingRequest(Body(long_input), kLimits);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().param, "input");
  EXPECT_THAT(refused.error().message, HasSubstr("8 tokens. However, you sent 9"));
  EXPECT_EQ(Good(long_input + R"(,"truncate_prompt_tokens":4)").truncate_prompt_tokens, 4);
}

TEST(EmbeddingsRequest, ErrorsNameTheField) {
  for (const auto& [more, param] :
       {std::pair{R"("input":[])", "input"}, std::pair{R"("input":7)", "input"}, std::pair{R"("x":1)", "input"},
        std::pair{R"("input":["a",1])", "input[1]"}, std::pair{R"("input":[[1],[]])", "input[1]"},
        std::pair{R"("input":[1000])", "input[0]"}, std::pair{R"("input":["a","b","c","d"])", "input"},
        std::pair{R"("input":"a","encoding_format":"int8")", "encoding_format"},
        std::pair{R"("input":"a","dimensions":0)", "dimensions"},
        std::pair{R"("input":"a","truncate_prompt_tokens":9)", "truncate_prompt_tokens"},
        std::pair{R"("input":"a","truncate_prompt_tokens":0)", "truncate_prompt_tokens"},
        std::pair{R"("input":"a","stream":true)", "stream"}, std::pair{R"("input":"a","prompt":"b")", "prompt"},
        std::pair{R"("input":"a","truncate":"END")", "truncate"}}) {
    const auto request = ParseEmbeddingRequest(Body(more), kLimits);
    ASSERT_FALSE(request.ok()) << more;
    EXPECT_EQ(request.error().param, param) << request.error().message;
  }
  EXPECT_EQ(Good(R"("input":"a","dimension":8)").mistakes.at(0).meant, "dimensions");
}

TEST(EmbeddingsDialect, NumbersAreExactAndShort) {
  const std::vector<float> values = {0.1f, -1, 1e-30f, 16777216};
  EXPECT_EQ(EmbeddingNumbers(values), "[0.1,-1,1e-30,16777216]");
  EXPECT_EQ(EmbeddingNumbers({}), "[]");
}

// The bytes of 1.0f are 00 00 80 3f.
TEST(EmbeddingsDialect, Base64IsOfLittleEndianFloats) {
  EXPECT_EQ(EmbeddingBase64(std::vector<float>{1}), R"("AACAPw==")");
  EXPECT_EQ(EmbeddingBase64(std::vector<float>{1, -2, 0.5f}), R"("AACAPwAAAMAAAAA/")");
}

}  // namespace
}  // namespace loramux::embeddings_dialect_test
