#include "server/api/tokens/tokens_dialect.h"

#include <gmock/gmock.h>

#include "http/json_reader.h"

namespace loramux::tokens_dialect_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Body(const std::string& parameters, const std::string& more = "") {
  return R"({"token_ids":[1,2,3],"sampling_params":{)" + parameters + "}" + (more.empty() ? "" : "," + more) + "}";
}

Result<DialectRequest> Parse(const std::string& body) {
  return TokensDialect().Parse(body, {.limits = {1000}, .number = "07", .created = 5, .base_model = "base"});
}

DialectRequest Good(const std::string& body) {
  auto parsed = Parse(body);
  EXPECT_TRUE(parsed.ok()) << body << ": " << parsed.error().message;
  return parsed.ok() ? std::move(*parsed) : DialectRequest();
}

std::string Refusal(const std::string& body) {
  const auto parsed = Parse(body);
  return parsed.ok() ? "accepted" : parsed.error().param + " " + parsed.error().message;
}

TEST(TokensRequest, Defaults) {
  const CompletionRequest request = Good(Body("")).request;
  EXPECT_EQ(request.model, "base");
  EXPECT_THAT(std::get<std::vector<TokenId>>(request.prompts.at(0)), ElementsAre(1, 2, 3));
  EXPECT_TRUE(request.token_ids);
  EXPECT_TRUE(request.to_model_length);
  EXPECT_EQ(request.sampling.top_logprobs, -1);
  EXPECT_FALSE(request.max_tokens || request.seed || request.stream);
}

TEST(TokensRequest, SamplingParamsAreThoseOfACompletion) {
  const CompletionRequest request =
      Good(Body(R"("n":2,"max_tokens":7,"temperature":0.5,"top_k":4,"seed":3,"logprobs":1,"stop_token_ids":[9],
          "logprob_token_ids":[5],"prompt_logprobs":-1,"structured_outputs":{"regex":"a"},"logit_bias":{"4":1.5},
          "detokenize":false,"output_kind":2,"extra_args":null,"bad_words":[],"min_p":null)",
                R"("model":"sql","priority":-2,"cache_salt":"s","request_id":"mine","features":null)"))
          .request;
  EXPECT_EQ(request.model, "sql");
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 4);
  EXPECT_EQ(request.seed, 3u);
  EXPECT_EQ(request.sampling.top_logprobs, 1);
  EXPECT_THAT(request.stop_token_ids, ElementsAre(9));
  EXPECT_THAT(request.logprob_token_ids, ElementsAre(5));
  EXPECT_EQ(request.prompt_logprobs, 1000);
  EXPECT_TRUE(request.output.has_value());
  EXPECT_THAT(request.logit_bias, ElementsAre(LogitBias(4, 1.5f)));
  EXPECT_EQ(request.priority, -2);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_FALSE(Good(Body(R"("seed":-1)")).request.seed.has_value());
}

TEST(TokensRequest, ErrorsNameTheFieldsOfThisApi) {
  EXPECT_THAT(Refusal(R"({"sampling_params":{}})"), HasSubstr("token_ids `token_ids`"));
  EXPECT_THAT(Refusal(R"({"token_ids":"hi","sampling_params":{}})"), HasSubstr("`token_ids`"));
  EXPECT_THAT(Refusal(R"({"token_ids":[[1]],"sampling_params":{}})"), HasSubstr("`token_ids`"));
  EXPECT_THAT(Refusal(R"({"token_ids":[1,1000],"sampling_params":{}})"), HasSubstr("token_ids[1] `token_ids[1]`"));
  EXPECT_THAT(Refusal(R"({"token_ids":[1]})"), HasSubstr("`sampling_params`: expected an object"));
  EXPECT_THAT(Refusal(Body(R"("temperature":-1)")), HasSubstr("`sampling_params.temperature`"));
  EXPECT_THAT(Refusal(Body(R"("logprobs":21)")), HasSubstr("`sampling_params.logprobs`"));
  EXPECT_THAT(Refusal(Body(R"("prompt_logprobs":1)", R"("stream":true)")),
              HasSubstr("`sampling_params.prompt_logprobs`"));
  EXPECT_THAT(Refusal(Body("", R"("priority":11)")), HasSubstr("`priority`"));
}

// What could change the answer is served or refused, never ignored.
TEST(TokensRequest, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(Refusal(Body(R"("temprature":0.5)")), HasSubstr("`sampling_params.temprature`"));
  EXPECT_THAT(Refusal(Body("", R"("temperature":0.5)")), HasSubstr("`sampling_params`: `temperature` belongs in it"));
  EXPECT_THAT(Refusal(Body("", R"("anything":0)")), HasSubstr("`anything`"));
  EXPECT_THAT(Refusal(Body(R"("model":"sql")")), HasSubstr("stands beside `sampling_params`"));
  EXPECT_THAT(Refusal(Body(R"("prompt":"hi")")), HasSubstr("`sampling_params.prompt`"));
  EXPECT_THAT(Refusal(Body(R"("trace_decode_token_ids":[1])")), HasSubstr("`sampling_params.trace_decode_token_ids`"));
  EXPECT_THAT(Refusal(Body(R"("bad_words":["x"])")), HasSubstr("`sampling_params.bad_words`"));
  EXPECT_THAT(Refusal(Body(R"("extra_args":{"x":1})")), HasSubstr("`sampling_params.extra_args`"));
  EXPECT_THAT(Refusal(Body("", R"("features":{"mm_hashes":{}})")), HasSubstr("`features`"));
  EXPECT_THAT(Refusal(Body("", R"("kv_transfer_params":{"a":1})")), HasSubstr("`kv_transfer_params`"));
  EXPECT_THAT(Refusal(Body(R"("repetition_detection":{"min_count":2})")), HasSubstr("`repetition_detection`"));
  EXPECT_EQ(Refusal(Body("", R"("user":"u","token_offsets":[[0,1]])")), "accepted");
}

// Two choices of the same tokens: the first one ended with a token.
std::vector<ChoiceOutput> Choices() {
  std::vector<ChoiceOutput> choices(2);
  for (ChoiceOutput& choice : choices) {
    choice.wants_logprobs = true;
    choice.token_ids = {{7, 8}};
    choice.logprobs = {
        {{.id = 7, .token = "a", .logprob = -0.5f}, {{.id = 9, .logprob = -0.25f}, {.id = 7, .logprob = -0.5f}}}};
    choice.finish = FinishReason::kLength;
  }
  choices[0].finish = FinishReason::kStop;
  choices[0].stop_token = 8;
  choices[0].stop_logprob = TokenLogprobText{{.id = 8, .token = "</s>", .logprob = -0.125f}, {}};
  choices[0].prompt_token_ids = std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{1, 2, 3});
  choices[0].prompt_logprobs = "[null]";
  choices[1].index = 1;
  choices[1].logprobs.push_back({{.id = 8, .token = "b", .logprob = -20'000.0f}, {}});
  return choices;
}

const Usage kUsage{.prompt_tokens = 3, .completion_tokens = 3, .cached_tokens = 2};

TEST(TokensWriter, ABodyHasIdsAndLogProbabilities) {
  const DialectRequest parsed = Good(Body(R"("logprobs":2)", R"("request_id":"mine","return_token_ids":true)"));
  parsed.writer->SetModel({"sql"});
  const Json body = *ParseJson(parsed.writer->Body(Choices(), kUsage));
  EXPECT_EQ(parsed.writer->id(), "generate-tokens-07");
  EXPECT_EQ(body["request_id"], "generate-tokens-mine");
  EXPECT_EQ(body["model"], "sql");
  EXPECT_EQ(body["created"], 5);
  EXPECT_EQ(DumpJson(body["prompt_logprobs"]), "[null]");
  EXPECT_EQ(DumpJson(body["prompt_token_ids"]), "[1,2,3]");
  EXPECT_EQ(body["usage"]["completion_tokens"], 4);  // as many as ids
  EXPECT_EQ(body["usage"]["total_tokens"], 7);
  const Json& first = body["choices"][0];
  EXPECT_EQ(first["finish_reason"], "stop");
  EXPECT_EQ(DumpJson(first["token_ids"]), "[7,8]");
  EXPECT_EQ(DumpJson(first["logprobs"]["content"]),
            R"([{"token":"token_id:7","token_id":7,"logprob":-0.5,"rank":2,"top_logprobs":[)"
            R"({"token":"token_id:9","token_id":9,"logprob":-0.25,"rank":1},)"
            R"({"token":"token_id:7","token_id":7,"logprob":-0.5,"rank":2}]},)"
            R"({"token":"token_id:8","token_id":8,"logprob":-0.125,"rank":null,"top_logprobs":[)"
            R"({"token":"token_id:8","token_id":8,"logprob":-0.125,"rank":null}]}])");
  EXPECT_EQ(body["choices"][1]["logprobs"]["content"][1]["logprob"], -9999.0);
  EXPECT_EQ(body["choices"][1]["finish_reason"], "length");
}

TEST(TokensWriter, ListedTokensHaveNoRank) {
  const DialectRequest parsed = Good(Body(R"("logprobs":0,"logprob_token_ids":[9,7])"));
  const Json body = *ParseJson(parsed.writer->Body(Choices(), kUsage));
  const Json& token = body["choices"][0]["logprobs"]["content"][0];
  EXPECT_TRUE(token["rank"].is_null() && token["top_logprobs"][0]["rank"].is_null());
  EXPECT_FALSE(body.contains("prompt_token_ids"));
}

TEST(TokensWriter, StreamsTheIds) {
  const DialectRequest parsed =
      Good(Body("", R"("stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})"));
  AnswerWriter& writer = *parsed.writer;
  ChoiceOutput output;
  output.token_ids.emplace();
  EXPECT_EQ(writer.Delta(output, {}), "");
  output.token_ids = {{7}};
  const std::string first = writer.Delta(output, {.prompt_tokens = 3, .completion_tokens = 1});
  EXPECT_THAT(first, HasSubstr(R"("token_ids":[7])"));
  EXPECT_THAT(first, HasSubstr(R"("finish_reason":null)"));
  EXPECT_THAT(first, HasSubstr(R"("completion_tokens":1)"));
  output.token_ids = {{8}};
  output.stop_token = 8;
  output.finish = FinishReason::kStop;
  EXPECT_THAT(writer.Delta(output, {.prompt_tokens = 3, .completion_tokens = 1}),
              HasSubstr(R"("completion_tokens":2)"));
  const std::string end = writer.End({.prompt_tokens = 3, .completion_tokens = 1});
  EXPECT_THAT(end, HasSubstr(R"("choices":[],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2)"));
  EXPECT_TRUE(end.ends_with("data: [DONE]\n\n"));
}

}  // namespace
}  // namespace loramux::tokens_dialect_test
