// Requests for embeddings from the body to the response, over a scripted engine.
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "http/json_reader.h"
#include "server/api/openai/embeddings_dialect.h"
#include "server/api/openai/openai_dialect.h"
#include "server/completion/embedding_plan.h"
#include "server/completion/prompt_limit.h"
#include "server/server_fixture.h"

namespace loramux::embedding_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<AdapterVersion> Adapter(Result<std::optional<EmbeddingConfig>> config) {
  auto adapter = std::make_shared<AdapterVersion>();
  adapter->name = "own";
  adapter->file.embedding = std::move(config);
  return adapter;
}

TEST(EmbeddingPlan, TheOperatorComesBeforeTheAdapterAndThatBeforeTheModel) {
  const ModelConfig model = ServingFixture::Model();
  EmbeddingOptions options;
  const auto pooling = [&](const AdapterVersion* adapter) {
    return PlanEmbedding(options, model, adapter, {})->pooling;
  };
  const auto silent = Adapter(std::optional<EmbeddingConfig>());
  const auto mean = Adapter(std::optional(EmbeddingConfig{Pooling::kMean, false}));
  EXPECT_EQ(pooling(nullptr), Pooling::kLast);
  EXPECT_EQ(pooling(mean.get()), Pooling::kMean);
  EXPECT_FALSE(PlanEmbedding(options, model, mean.get(), {})->normalize);
  EXPECT_TRUE(PlanEmbedding(options, model, mean.get(), {.normalize = true})->normalize);
  options.model = std::optional(EmbeddingConfig{Pooling::kMean, true});
  EXPECT_EQ(pooling(nullptr), Pooling::kMean);
  EXPECT_EQ(pooling(silent.get()), Pooling::kMean);
  options.pooling = Pooling::kLast;
  EXPECT_EQ(pooling(mean.get()), Pooling::kLast);
}

TEST(EmbeddingPlan, WhatIsNotComputedIsRefusedByName) {
  const ModelConfig model = ServingFixture::Model();
  EmbeddingOptions options;
  const auto strange = Adapter(Unsupported("1_Pooling/config.json: found 'cls_token'"));
  const auto refused = PlanEmbedding(options, model, strange.get(), {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().param, "model");
  EXPECT_THAT(refused.error().message, HasSubstr("'cls_token'"));
  EXPECT_TRUE(PlanEmbedding(options, model, nullptr, {}).ok());
  options.pooling = Pooling::kMean;
  EXPECT_EQ(PlanEmbedding(options, model, strange.get(), {})->pooling, Pooling::kMean);
}

TEST(EmbeddingPlan, DimensionsAreThoseThatTheModelIsTrainedFor) {
  ModelConfig model = ServingFixture::Model();
  const auto served = [&](std::int64_t dimensions) {
    return PlanEmbedding({}, model, nullptr, {.dimensions = dimensions}).ok();
  };
  EXPECT_TRUE(served(4));
  EXPECT_FALSE(served(2));
  EXPECT_THAT(PlanEmbedding({}, model, nullptr, {.dimensions = 2}).error().message, HasSubstr("expected 4, because"));
  model.matryoshka = std::vector<std::int64_t>{2};
  EXPECT_TRUE(served(2) && served(4));
  EXPECT_FALSE(served(3) || served(5));
  model.matryoshka = std::vector<std::int64_t>{};
  EXPECT_TRUE(served(1) && served(3));
  EXPECT_FALSE(served(5));
}

TEST(EmbeddingPlan, CutsBeforeItNormalizes) {
  std::vector<float> embedding = {3, 4, 12};
  FinishEmbedding({.normalize = false}, embedding);
  EXPECT_THAT(embedding, ElementsAre(3, 4, 12));
  FinishEmbedding({.dimensions = 2}, embedding);
  EXPECT_THAT(embedding, ElementsAre(0.6f, 0.8f));
  std::vector<float> zero = {0, 0};
  FinishEmbedding({}, zero);
  EXPECT_THAT(zero, ElementsAre(0, 0));
}

// What it keeps is what the whole text's tokens begin with, and the special tokens stay.
TEST(EncodeBeginning, KeepsTheFirstTokensAndTheSpecialOnes) {
  const Tokenizer tokenizer = ServingFixture::LoadTokenizer();
  const PromptLimit limit{.tokens = 1 << 20};
  const auto encode = [&](std::string_view text, bool special, std::int64_t most) {
    return EncodeBeginning(tokenizer, text, special, limit, most).value();
  };
  EXPECT_EQ(encode("abcdef", false, 4), Bytes("abcd"));
  EXPECT_EQ(encode("abc", false, 4), Bytes("abc"));
  EXPECT_THAT(encode("abcdef", true, 4), ElementsAre(kBosToken, 'a', 'b', 'c'));
  EXPECT_THAT(encode("abcdef", true, 1), ElementsAre(kBosToken));
  std::string long_text;
  for (int i = 0; i < 100'000; ++i) long_text += static_cast<char>(i % 7 == 0 ? ' ' : 'a' + i % 26);
  EXPECT_EQ(encode(long_text, false, 70'000), Bytes(long_text.substr(0, 70'000)));
  const PromptLimit bytes{.tokens = 8, .bytes = 10};
  EXPECT_THAT(EncodeBeginning(tokenizer, "eleven bytes", false, bytes, 4).error().message, HasSubstr("10 bytes"));
}

// The response, when all inputs are computed.
Json AnswerOf(Result<CompletionJob> job) {
  EXPECT_TRUE(job.ok()) << job.error().message;
  const auto inbox = std::make_shared<GenerationInbox>(1 << 20, [] {});
  EXPECT_TRUE(job->Submit(inbox).ok());
  EXPECT_TRUE(WaitUntil([&] {
    EXPECT_TRUE(job->Apply(inbox->Take()).ok());
    return job->finished();
  }));
  return *ParseJson(job->TakeBody());
}

struct World : ServingFixture {
  ScriptedService service{[](const GenerationRequest&) -> Result<Script> { return Script(); }};
  ServingContext context = Context(service);

  Result<CompletionJob> Prepare(const std::string& body) {
    return CompletionJob::Prepare(context, EmbeddingsDialect(), body);
  }
  Json Answer(const std::string& body) { return AnswerOf(Prepare(body)); }
};

TEST(EmbeddingJob, AnswersInTheOrderOfTheInputs) {
  World world;
  const Json answer = world.Answer(R"({"model":"base","input":["ab","c"],"normalize":false})");
  EXPECT_EQ(answer["object"], "list");
  EXPECT_EQ(answer["model"], "base");
  EXPECT_THAT(answer["id"].get<std::string>(), testing::StartsWith("embd-"));
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 5);  // with two special tokens
  EXPECT_EQ(answer["usage"]["total_tokens"], 5);
  ASSERT_EQ(answer["data"].size(), 2u);
  EXPECT_EQ(answer["data"][0]["object"], "embedding");
  EXPECT_EQ(answer["data"][1]["index"], 1);
  EXPECT_EQ(answer["data"][0]["embedding"], Json({0, 0, 12, 9}));
  EXPECT_EQ(answer["data"][1]["embedding"], Json({0, 0, 8, 6}));
  const auto submitted = world.service.submitted();
  ASSERT_EQ(submitted.size(), 2u);
  EXPECT_EQ(submitted[0].pooling, Pooling::kLast);
  EXPECT_EQ(submitted[0].max_tokens, 0);
}

TEST(EmbeddingJob, UsesTheAdapterAndThePoolingOfTheModel) {
  World world;
  const EmbeddingOptions options{.model = std::optional(EmbeddingConfig{Pooling::kMean, true})};
  world.context.embeddings = &options;
  const Json answer = world.Answer(R"({"model":"sql","input":[7,8,9],"encoding_format":"base64"})");
  EXPECT_EQ(answer["model"], "sql");
  EXPECT_EQ(answer["data"][0]["embedding"], "mpkZP83MTD8AAAAAAAAAAA==");  // 0.6, 0.8, 0, 0
  EXPECT_EQ(world.service.submitted().at(0).adapter.value, 1u);
}

TEST(EmbeddingJob, CutsInputsThatAreTooLongIfAskedTo) {
  World world;
  const auto prompt = [&](const std::string& input) {
    const std::string body = R"({"model":"base","input":)" + input + R"(,"truncate_prompt_tokens":3})";
    EXPECT_TRUE(world.Answer(body).contains("data"));
    return world.service.submitted().back().prompt;
  };
  EXPECT_THAT(prompt(R"("abcdef")"), ElementsAre(kBosToken, 'a', 'b'));
  EXPECT_THAT(prompt("[5,6,7,8]"), ElementsAre(5, 6, 7));
}

TEST(EmbeddingJob, ErrorsNameTheInput) {
  World world;
  const std::string text(kTestMaxTokens + 1, 'a');
  const auto too_long = world.Prepare(R"({"model":"base","input":")" + text + R"("})");
  ASSERT_FALSE(too_long.ok());
  EXPECT_EQ(too_long.error().param, "input");
  EXPECT_THAT(too_long.error().message, HasSubstr("length is 4096 tokens. However, your prompt has 4098."));
  const auto empty = world.Prepare(R"({"model":"base","input":"","add_special_tokens":false})");
  ASSERT_FALSE(empty.ok());
  EXPECT_EQ(empty.error().param, "input");
  const auto short_one = world.Prepare(R"({"model":"base","input":"a","dimensions":2})");
  ASSERT_FALSE(short_one.ok());
  EXPECT_EQ(short_one.error().param, "dimensions");
  EXPECT_EQ(world.Prepare(R"({"model":"unknown","input":"a"})").error().code, ErrorCode::kNotFound);
}

// ---- Classes and scores

// "grader" has a head of two classes, and "judge" one of one, which reads the last numbers: their difference is the
// prompt's length.
struct HeadWorld : World {
  HeadWorld() {
    Register("grader", {0, 0, 0, 1, 0, 0, 1, 0});
    Register("judge", {0, 0, 0.25f, -0.25f});
  }

  void Register(const std::string& name, const std::vector<float>& weights) {
    auto adapter = std::make_shared<AdapterVersion>();
    adapter->name = name;
    tensors.push_back({.name = "score", .shape = {static_cast<std::int64_t>(weights.size()) / 4, 4}});
    adapter->file.head = ClassHead{.module = "score", .tensor = &tensors.back()};
    adapter->file.head->weights.resize(weights.size() * sizeof(float));
    std::memcpy(adapter->file.head->weights.data(), weights.data(), weights.size() * sizeof(float));
    EXPECT_TRUE(registry.Commit(std::move(adapter)).ok());
  }
  Json Answer(const Dialect& dialect, const std::string& body) {
    return AnswerOf(CompletionJob::Prepare(context, dialect, body));
  }
  Error Refused(const Dialect& dialect, const std::string& body) {
    auto job = CompletionJob::Prepare(context, dialect, body);
    EXPECT_FALSE(job.ok()) << body;
    return job.ok() ? Internal("accepted") : std::move(job).error();
  }

  std::deque<TensorEntry> tensors;
};

double Logistic(double value) { return 1 / (1 + std::exp(-value)); }

TEST(ClassifyJob, AnswersByTheAdaptersHead) {
  HeadWorld world;
  const EmbeddingOptions mean{.pooling = Pooling::kMean};
  world.context.embeddings = &mean;  // heads read the last token nonetheless
  const Json answer = world.Answer(ClassifyDialect(), R"({"model":"grader","input":[[7,8],[7]]})");
  ASSERT_EQ(answer["data"].size(), 2u);
  EXPECT_EQ(answer["data"][0]["label"], "LABEL_1");  // 3 times 2 tokens against 4 times 2
  EXPECT_NEAR(answer["data"][0]["probs"][1].get<double>(), Logistic(2), 1e-6);
  EXPECT_NEAR(answer["data"][1]["probs"][0].get<double>(), Logistic(-1), 1e-6);
  EXPECT_EQ(answer["model"], "grader");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 3);
  const Json raw = world.Answer(ClassifyDialect(), R"({"model":"grader","input":"a","use_activation":false})");
  EXPECT_EQ(raw["data"][0]["probs"], Json({6.0, 8.0}));
  const Json chat = world.Answer(ClassifyDialect(), R"({"model":"judge","messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(chat["data"][0]["num_classes"], 1);
  const auto prompt = world.service.submitted().back().prompt;
  std::vector<TokenId> expected = Bytes("[user]hi");
  expected.insert(expected.begin(), kBosToken);
  EXPECT_EQ(prompt, expected);
  EXPECT_NEAR(chat["data"][0]["probs"][0].get<double>(), Logistic(0.25 * static_cast<double>(expected.size())), 1e-6);
}

TEST(ScoreJob, AHeadOfOneClassReadsPairs) {
  HeadWorld world;
  const Json answer = world.Answer(ScoreDialect(), R"({"model":"judge","text_1":"ab","text_2":["c","def"]})");
  ASSERT_EQ(answer["data"].size(), 2u);
  EXPECT_NEAR(answer["data"][0]["score"].get<double>(), Logistic(0.75), 1e-6);
  EXPECT_NEAR(answer["data"][1]["score"].get<double>(), Logistic(1.25), 1e-6);
  EXPECT_EQ(world.service.submitted().at(1).prompt, Bytes("abdef"));  // this tokenizer puts nothing between them
  const Json each = world.Answer(
      ScoreDialect(), R"({"model":"judge","text_1":["ab","x"],"text_2":["c","d"],"truncate_prompt_tokens":2})");
  EXPECT_EQ(each["data"][1]["index"], 1);
  EXPECT_EQ(world.service.submitted().at(2).prompt, Bytes("ac"));
  const Json sorted =
      world.Answer(RerankDialect(), R"({"model":"judge","query":"q","documents":["a","bcd","ef"],"top_n":2})");
  ASSERT_EQ(sorted["results"].size(), 2u);
  EXPECT_EQ(sorted["results"][0]["document"]["text"], "bcd");
  EXPECT_EQ(sorted["results"][1]["index"], 2);
}

TEST(ScoreJob, WithoutAHeadScoresAreCosines) {
  HeadWorld world;
  const Json answer = world.Answer(ScoreDialect(), R"({"model":"sql","text_1":"ab","text_2":["c","def"]})");
  ASSERT_EQ(answer["data"].size(), 2u);
  EXPECT_EQ(answer["data"][1]["index"], 1);
  EXPECT_NEAR(answer["data"][1]["score"].get<double>(), 1, 1e-6);
  EXPECT_EQ(world.service.submitted().size(), 3u);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 9);  // each text once, with its special token
}

TEST(FinishPooled, CosinesOfEachPair) {
  std::vector<ChoiceOutput> outputs(4);
  outputs[0].embedding = {1, 0};
  outputs[1].embedding = {0, 0};
  outputs[2].embedding = {3, 4};
  outputs[3].embedding = {1, 1};
  FinishPooled({.use = PooledUse::kScores, .first = 2}, outputs);
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_THAT(outputs[0].embedding, ElementsAre(0.6f));
  EXPECT_THAT(outputs[1].embedding, ElementsAre(0));
  EXPECT_EQ(outputs[1].index, 1);
}

TEST(HeadJob, RefusalsSayWhatIsExpected) {
  HeadWorld world;
  for (const auto& [dialect, body, what] :
       {std::tuple{&ClassifyDialect(), R"({"model":"base","input":"a"})", "found the base model"},
        std::tuple{&ClassifyDialect(), R"({"model":"sql","input":"a"})", "'sql' without one"},
        std::tuple{&ScoreDialect(), R"({"model":"grader","text_1":"a","text_2":"b"})", "a head of 2 classes"},
        std::tuple{&OpenAiDialect(Endpoint::kCompletion), R"({"model":"grader","prompt":"a"})", "generates no text"},
        std::tuple{&OpenAiDialect(Endpoint::kChat), R"({"model":"judge","messages":[{"role":"user","content":"a"}]})",
                   "/score or /v1/rerank"}}) {
    const Error error = world.Refused(*dialect, body);
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.param, "model");
    EXPECT_THAT(error.message, HasSubstr(what));
  }
  const std::string text(kTestMaxTokens + 1, 'a');
  EXPECT_EQ(world.Refused(ScoreDialect(), R"({"model":"judge","text_1":"b","text_2":")" + text + R"("})").param,
            "text_2");
  EXPECT_EQ(world.Refused(ScoreDialect(), R"({"model":"sql","text_1":")" + text + R"(","text_2":"b"})").param,
            "text_1");
  EXPECT_EQ(world.Refused(RerankDialect(), R"({"model":"sql","query":"q","documents":[")" + text + R"("]})").param,
            "documents");
  EXPECT_TRUE(world.Answer(EmbeddingsDialect(), R"({"model":"judge","input":"a"})").contains("data"));
}

}  // namespace
}  // namespace loramux::embedding_test
