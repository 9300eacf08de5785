#include "server/api/openai/embeddings_dialect.h"
#include "server/api/openai/openai_request.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

namespace loramux::embeddings_dialect_test {
namespace {

using testing::HasSubstr;

const RequestLimits kLimits{.vocab_size = 1000, .max_sequences = 3, .max_tokens = 8};

std::string Body(const std::string& more) { return R"({"model":"m",)" + more + "}"; }

CompletionRequest Good(const std::string& more) {
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
  const CompletionRequest plain = Good(R"("input":"a")");
  EXPECT_EQ(plain.max_tokens, 0);
  EXPECT_EQ(plain.embedding->dimensions, 0);
  EXPECT_EQ(plain.embedding->normalize, std::nullopt);
  EXPECT_EQ(plain.truncate_prompt_tokens, std::nullopt);
  EXPECT_FALSE(plain.embedding->base64);
  EXPECT_TRUE(plain.add_special_tokens);
  const CompletionRequest all =
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

// ---- Classes and scores

using Prompts = std::vector<Prompt>;

TEST(ClassifyRequest, InputsAreTextsTokensOrAChat) {
  const auto good = [](const std::string& more) {
    auto request = ParseClassifyRequest(Body(more), kLimits);
    EXPECT_TRUE(request.ok()) << request.error().message;
    return std::move(request).value();
  };
  const CompletionRequest texts = good(R"("input":["a","b"])");
  EXPECT_EQ(texts.prompts, (Prompts{"a", "b"}));
  EXPECT_EQ(texts.max_tokens, 0);
  EXPECT_TRUE(texts.embedding->use == PooledUse::kClasses && texts.embedding->activate && texts.add_special_tokens);
  EXPECT_EQ(good(R"("input":[1,2])").prompts, (Prompts{std::vector<TokenId>{1, 2}}));
  EXPECT_FALSE(good(R"("input":"a","use_activation":false)").embedding->activate);
  const CompletionRequest chat = good(R"("messages":[{"role":"user","content":"hi"}])");
  EXPECT_EQ(chat.endpoint, Endpoint::kChat);
  EXPECT_FALSE(chat.chat.add_generation_prompt || chat.add_special_tokens);
  EXPECT_TRUE(
      good(R"("messages":[{"role":"user","content":"hi"}],"add_generation_prompt":true)").chat.add_generation_prompt);
}

TEST(ClassifyRequest, ErrorsNameTheField) {
  for (const auto& [more, param] :
       {std::pair{R"("x":1)", "input"}, std::pair{R"("input":"a","messages":[{"role":"user","content":"b"}])", "input"},
        std::pair{R"("input":"a","tools":[])", "tools"}, std::pair{R"("input":"a","documents":[])", "documents"},
        std::pair{R"("messages":[])", "messages"}, std::pair{R"("input":"a","dimensions":3)", "dimensions"},
        std::pair{R"("input":"a","use_activation":1)", "use_activation"},
        std::pair{R"("input":"a","softmax":false)", "softmax"}, std::pair{R"("input":["a","b","c","d"])", "input"}}) {
    const auto request = ParseClassifyRequest(Body(more), kLimits);
    ASSERT_FALSE(request.ok()) << more;
    EXPECT_EQ(request.error().param, param) << request.error().message;
  }
}

TEST(ScoreRequest, ComparesOneWithManyOrEachWithItsOwn) {
  const auto one = ParseScoreRequest(Body(R"("text_1":"q","text_2":["a","b"])"), kLimits);
  ASSERT_TRUE(one.ok()) << one.error().message;
  EXPECT_EQ(one->prompts, (Prompts{"q", "a", "b"}));
  EXPECT_EQ(one->embedding->first, 1u);
  EXPECT_EQ(one->embedding->use, PooledUse::kScores);
  const auto each = ParseScoreRequest(Body(R"("text_1":["p","q"],"text_2":["a","b"])"), {.max_sequences = 4});
  ASSERT_TRUE(each.ok()) << each.error().message;
  EXPECT_EQ(each->embedding->first, 2u);
  for (const auto& [more, param] :
       {std::pair{R"("text_1":"q")", "text_2"}, std::pair{R"("text_2":"q")", "text_1"},
        std::pair{R"("text_1":["p","q"],"text_2":"a")", "text_1"}, std::pair{R"("text_1":[],"text_2":"a")", "text_1"},
        std::pair{R"("text_1":"q","text_2":["a","b","c"])", "text_2"},
        std::pair{R"("text_1":[1],"text_2":"a")", "text_1"}, std::pair{R"("queries":"q","text_2":"a")", "queries"},
        std::pair{R"("input":"q")", "input"}}) {
    const auto request = ParseScoreRequest(Body(more), kLimits);
    ASSERT_FALSE(request.ok()) << more;
    EXPECT_EQ(request.error().param, param) << request.error().message;
  }
}

TEST(RerankRequest, DocumentsAreTextsOrObjectsWithOne) {
  RerankReply reply;
  const auto request =
      ParseRerankRequest(Body(R"("query":"q","documents":["a",{"text":"b"}],"top_n":1)"), kLimits, reply);
  ASSERT_TRUE(request.ok()) << request.error().message;
  EXPECT_EQ(request->prompts, (Prompts{"q", "a", "b"}));
  EXPECT_EQ(reply.top_n, 1u);
  EXPECT_EQ(reply.documents, (std::vector<std::string>{"a", "b"}));
  RerankReply short_reply;
  ASSERT_TRUE(
      ParseRerankRequest(Body(R"("query":"q","documents":["a"],"return_documents":false)"), kLimits, short_reply).ok());
  EXPECT_TRUE(short_reply.documents.empty());
  for (const auto& [more, param] :
       {std::pair{R"("documents":["a"])", "query"}, std::pair{R"("query":"q")", "documents"},
        std::pair{R"("query":["q"],"documents":["a"])", "query"},
        std::pair{R"("query":"q","documents":"a")", "documents"},
        std::pair{R"("query":"q","documents":[{"title":"a"}])", "documents"},
        std::pair{R"("query":"q","documents":[{"text":"a","image":"b"}])", "documents"},
        std::pair{R"("query":"q","documents":["a"],"top_n":-1)", "top_n"},
        std::pair{R"("query":"q","documents":["a"],"top_k":2)", "top_k"},
        std::pair{R"("query":"q","documents":["a","b","c"])", "documents"}}) {
    RerankReply ignored;
    const auto refused = ParseRerankRequest(Body(more), kLimits, ignored);
    ASSERT_FALSE(refused.ok()) << more;
    EXPECT_EQ(refused.error().param, param) << refused.error().message;
  }
}

Json Answer(const Dialect& dialect, const std::string& more, const std::vector<ChoiceOutput>& outputs) {
  const auto parsed = dialect.Parse(Body(more), {.limits = kLimits, .number = "7", .created = 5});
  EXPECT_TRUE(parsed.ok()) << parsed.error().message;
  return *ParseJson(parsed->writer->Body(outputs, {.prompt_tokens = 9, .cached_tokens = 4}));
}

const Json kUsage = {{"prompt_tokens", 9},
                     {"total_tokens", 9},
                     {"prompt_tokens_details", {{"cached_tokens", 4}}},
                     {"completion_tokens", 0}};

TEST(ClassifyAnswer, HasVllmsShape) {
  std::vector<ChoiceOutput> outputs(2);
  outputs[0].text = "go\"od";
  outputs[0].embedding = {0.25f, 0.75f};
  outputs[1].index = 1;
  outputs[1].text = "LABEL_0";
  outputs[1].embedding = {1, 0};
  const Json answer = Answer(ClassifyDialect(), R"("input":["a","b"])", outputs);
  EXPECT_EQ(answer, Json::parse(R"({"object":"list","id":"classify-7","created":5,"model":"m","data":[
      {"index":0,"label":"go\"od","probs":[0.25,0.75],"num_classes":2},
      {"index":1,"label":"LABEL_0","probs":[1,0],"num_classes":2}],"usage":)" +
                                kUsage.dump() + "}"));
}

TEST(ScoreAnswer, HasVllmsShape) {
  std::vector<ChoiceOutput> outputs(2);
  outputs[0].embedding = {0.5f};
  outputs[1].index = 1;
  outputs[1].embedding = {-0.125f};
  const Json answer = Answer(ScoreDialect(), R"("text_1":"q","text_2":["a","b"])", outputs);
  EXPECT_EQ(answer, Json::parse(R"({"object":"list","id":"score-7","created":5,"model":"m","data":[
      {"index":0,"object":"score","score":0.5},{"index":1,"object":"score","score":-0.125}],"usage":)" +
                                kUsage.dump() + "}"));
}

TEST(RerankAnswer, HasTheBestFirst) {
  std::vector<ChoiceOutput> outputs(3);
  for (int i = 0; i < 3; ++i) {
    outputs[static_cast<std::size_t>(i)].index = i;
    outputs[static_cast<std::size_t>(i)].embedding = {i == 1 ? 0.75f : 0.5f};
  }
  const RequestLimits limits{.max_sequences = 9};
  const auto answer = [&](const std::string& more) {
    const auto parsed = RerankDialect().Parse(Body(R"("query":"q","documents":["a","b","c"])" + more),
                                              {.limits = limits, .number = "7", .created = 5});
    return *ParseJson(parsed->writer->Body(outputs, {.prompt_tokens = 9}));
  };
  const Json all = answer("");
  EXPECT_EQ(all["id"], "rerank-7");
  EXPECT_EQ(all["usage"]["total_tokens"], 9);
  EXPECT_EQ(all["results"], Json::parse(R"([{"index":1,"document":{"text":"b"},"relevance_score":0.75},
      {"index":0,"document":{"text":"a"},"relevance_score":0.5},{"index":2,"document":{"text":"c"},"relevance_score":0.5}])"));
  EXPECT_EQ(answer(R"(,"top_n":1,"return_documents":false)")["results"],
            Json::parse(R"([{"index":1,"relevance_score":0.75}])"));
  EXPECT_EQ(answer(R"(,"top_n":7)")["results"].size(), 3u);
}

}  // namespace
}  // namespace loramux::embeddings_dialect_test
