#include "server/api/tgi/tgi_dialect.h"

#include <gmock/gmock.h>

#include "http/json_reader.h"

namespace loramux::tgi_dialect_test {
namespace {

using testing::HasSubstr;

Json Parsed(std::string_view text) {
  auto json = ParseJson(text);
  EXPECT_TRUE(json.ok()) << text;
  return json.ok() ? *json : Json();
}

std::string Body(const std::string& parameters, const std::string& more = "") {
  return R"({"inputs":"hi","parameters":{)" + parameters + "}" + (more.empty() ? "" : "," + more) + "}";
}

Result<DialectRequest> Parse(const std::string& body, TgiPath path = TgiPath::kGenerate) {
  return TgiDialect(path).Parse(body, {.limits = {}, .number = "07", .created = 5, .base_model = "base"});
}

CompletionRequest Good(const std::string& body, TgiPath path = TgiPath::kGenerate) {
  auto parsed = Parse(body, path);
  EXPECT_TRUE(parsed.ok()) << body << ": " << parsed.error().message;
  return parsed.ok() ? std::move(parsed->request) : CompletionRequest();
}

std::string Refusal(const std::string& body, TgiPath path = TgiPath::kGenerate) {
  const auto parsed = Parse(body, path);
  return parsed.ok() ? "accepted" : parsed.error().param + " " + parsed.error().message;
}

TEST(TgiRequest, Defaults) {
  const CompletionRequest request = Good(R"({"inputs":"hi"})");
  EXPECT_EQ(request.model, "base");
  EXPECT_EQ(std::get<std::string>(request.prompts.at(0)), "hi");
  EXPECT_TRUE(request.sampling.IsGreedy());
  EXPECT_TRUE(request.add_special_tokens);
  EXPECT_TRUE(request.include_stop);
  EXPECT_TRUE(request.to_model_length);
  EXPECT_FALSE(request.max_tokens);
  EXPECT_FALSE(request.stream);
}

TEST(TgiRequest, Parameters) {
  const CompletionRequest request =
      Good(Body(R"("adapter_id":"sql","max_new_tokens":7,"stop":["x"],"repetition_penalty":1.5,
      "seed":3,"temperature":0.5,"top_k":4,"min_p":0.25)"));
  EXPECT_EQ(request.model, "sql");
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_THAT(request.stop, testing::ElementsAre("x"));
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(request.seed, 3u);
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 4);
  EXPECT_EQ(request.sampling.min_p, 0.25f);
}

TEST(TgiRequest, PromptsAndAlternatives) {
  const CompletionRequest request = Good(Body(R"("truncate":5,"top_n_tokens":2,"decoder_input_details":true)"));
  EXPECT_EQ(request.truncate_prompt_tokens, 5);
  EXPECT_EQ(request.sampling.top_logprobs, 2);
  EXPECT_TRUE(request.echo);
}

// It samples only where something asks for it.
TEST(TgiRequest, Sampling) {
  const auto temperature = [](const std::string& parameters) { return Good(Body(parameters)).sampling.temperature; };
  EXPECT_EQ(temperature(R"("temperature":1.0)"), 0.0f);
  EXPECT_EQ(temperature(R"("do_sample":true)"), 1.0f);
  EXPECT_EQ(temperature(R"("top_p":0.9)"), 1.0f);
  EXPECT_EQ(temperature(R"("top_k":5)"), 1.0f);
  EXPECT_EQ(temperature(R"("temperature":0.3)"), 0.3f);
}

TEST(TgiRequest, Streams) {
  EXPECT_TRUE(Good(R"({"inputs":"hi"})", TgiPath::kGenerateStream).stream);
  EXPECT_TRUE(Good(R"({"inputs":"hi","stream":true})", TgiPath::kRoot).stream);
  EXPECT_FALSE(Good(R"({"inputs":"hi","stream":true})", TgiPath::kGenerate).stream);
}

TEST(TgiRequest, ErrorsNameTheFieldsOfThisApi) {
  EXPECT_THAT(Refusal(R"({"inputs":""})"), HasSubstr("inputs `inputs`"));
  EXPECT_THAT(Refusal(Body(R"("max_new_tokens":-1)")),
              HasSubstr("parameters.max_new_tokens `parameters.max_new_tokens`"));
  EXPECT_THAT(Refusal(Body(R"("temperature":0)")), HasSubstr("`parameters.temperature`"));
  EXPECT_THAT(Refusal(Body(R"("top_n_tokens":21)")), HasSubstr("`parameters.top_n_tokens`"));
  EXPECT_THAT(Refusal(Body(R"("decoder_input_details":true)"), TgiPath::kGenerateStream),
              HasSubstr("`parameters.decoder_input_details`"));
  EXPECT_THAT(Refusal(Body(R"("truncate":0)")), HasSubstr("`parameters.truncate`"));
  EXPECT_THAT(Refusal(Body(R"("typical_p":0.5)")), HasSubstr("`parameters.typical_p`"));
  EXPECT_THAT(Refusal(Body(R"("max_tokens":5)")), HasSubstr("`parameters.max_tokens`"));
  EXPECT_THAT(Refusal(Body("", R"("adapter_id":"sql")")), HasSubstr("`adapter_id`"));
  EXPECT_THAT(Refusal(Body("", R"("model":"sql")")), HasSubstr("in `parameters`"));
  EXPECT_THAT(Refusal(Body(R"("watermark":true)")), HasSubstr("`parameters.watermark`"));
  EXPECT_THAT(Refusal(Body(R"("grammar":{"type":"x"})")), HasSubstr("`parameters.grammar`"));
  EXPECT_THAT(Refusal(Body(R"("best_of":2)")), HasSubstr("without sampling"));
  EXPECT_THAT(Refusal(Body(R"("best_of":2,"do_sample":true,"seed":1)")), HasSubstr("together with `seed`"));
  EXPECT_THAT(Refusal(Body(R"("best_of":2,"do_sample":true)"), TgiPath::kGenerateStream), HasSubstr("streamed"));
  EXPECT_EQ(Refusal(Body(R"("watermark":false,"typical_p":null,"decoder_input_details":false,"top_n_tokens":null)")),
            "accepted");
}

// "h" and "é" in two tokens each of one byte, then a token that ended it.
ChoiceOutput Output() {
  ChoiceOutput output;
  output.text = "h\xC3\xA9";
  output.logprobs = {{{104, "h", -0.5f}, {}, false, 1},
                     {{195, "\xEF\xBF\xBD", -1.5f, "\xC3"}, {}, false, 1},
                     {{169, "\xEF\xBF\xBD", -1.0f, "\xA9"}, {}, false, 3}};
  output.finish = FinishReason::kStop;
  output.stop_token = 2;
  output.stop_token_text = "</s>";
  return output;
}
constexpr Usage kUsage{.prompt_tokens = 10, .completion_tokens = 3};

TEST(TgiAnswer, WholeBody) {
  const ChoiceOutput choices[] = {Output()};
  EXPECT_EQ(Parse(Body(""))->writer->Body(choices, kUsage), "{\"generated_text\":\"h\xC3\xA9\"}");
  EXPECT_EQ(Parse(Body(R"("return_full_text":true)"), TgiPath::kRoot)->writer->Body(choices, kUsage),
            "[{\"generated_text\":\"hih\xC3\xA9\"}]");
  const Json details =
      Parsed(Parse(Body(R"("details":true,"seed":9,"do_sample":true)"))->writer->Body(choices, kUsage))["details"];
  EXPECT_EQ(details["finish_reason"], "eos_token");
  EXPECT_EQ(details["generated_tokens"], 4);
  EXPECT_EQ(details["seed"], 9);
  ASSERT_EQ(details["tokens"].size(), 4u);
  EXPECT_EQ(details["tokens"][0], Parsed(R"({"id":104,"text":"h","logprob":-0.5,"special":false})"));
  EXPECT_EQ(details["tokens"][1]["text"], "");
  EXPECT_EQ(details["tokens"][2]["text"], "\xC3\xA9");
  EXPECT_EQ(details["tokens"][3], Parsed(R"({"id":2,"text":"</s>","logprob":null,"special":true})"));
}

// The prompt "xy" in two tokens, the likeliest of which would have been worse choices than they are.
TEST(TgiAnswer, PromptTokensAndAlternatives) {
  ChoiceOutput output = Output();
  output.text = "xy" + output.text;
  for (TokenLogprobText& token : output.logprobs) token.text_end += 2;
  output.logprobs[0].top = {{104, "h", -0.5f}, {.id = 2, .token = "</s>", .logprob = -2.0f, .special = true}};
  output.logprobs.insert(output.logprobs.begin(), {{{120, "x", 0}, {}, true, 2}, {{121, "y", -9}, {}, false, 2}});
  const ChoiceOutput choices[] = {output};
  const auto parsed = Parse(Body(R"("decoder_input_details":true,"top_n_tokens":2)"));
  const Json body = Parsed(parsed->writer->Body(choices, {.prompt_tokens = 2, .completion_tokens = 3}));
  EXPECT_EQ(body["generated_text"], "h\xC3\xA9");
  const Json& details = body["details"];
  EXPECT_EQ(details["prefill"],
            Parsed(R"([{"id":120,"text":"x","logprob":null},{"id":121,"text":"y","logprob":-9.0}])"));
  ASSERT_EQ(details["tokens"].size(), 4u);
  EXPECT_EQ(details["tokens"][0]["text"], "h");
  EXPECT_EQ(details["top_tokens"], Parsed(R"([[{"id":104,"text":"h","logprob":-0.5,"special":false},
                                               {"id":2,"text":"</s>","logprob":-2.0,"special":true}],[],[],[]])"));
}

TEST(TgiAnswer, TheLikeliestOfSeveral) {
  ChoiceOutput worse = Output(), better = Output();
  better.text = "HE";
  for (TokenLogprobText& token : better.logprobs) token.chosen.logprob = -0.1f;
  const ChoiceOutput choices[] = {worse, better, worse};
  const Json body =
      Parsed(Parse(Body(R"("best_of":3,"do_sample":true,"details":true)"))->writer->Body(choices, kUsage));
  EXPECT_EQ(body["generated_text"], "HE");
  EXPECT_EQ(body["details"]["best_of_sequences"].size(), 2u);
}

std::vector<Json> Events(std::string_view text) {
  std::vector<Json> events;
  while (!text.empty()) {
    const auto end = text.find("\n\n");
    EXPECT_TRUE(text.starts_with("data: "));
    events.push_back(Parsed(text.substr(6, end - 6)));
    text.remove_prefix(end + 2);
  }
  return events;
}

TEST(TgiAnswer, Stream) {
  const auto parsed = Parse(Body(""), TgiPath::kGenerateStream);
  const auto events = Events(parsed->writer->Delta(Output(), kUsage));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0], Parsed(R"({"index":1,"token":{"id":104,"text":"h","logprob":-0.5,"special":false},
                                  "generated_text":null,"details":null})"));
  EXPECT_EQ(events[3]["token"]["text"], "</s>");
  EXPECT_EQ(events[3]["generated_text"], "h\xC3\xA9");
  EXPECT_EQ(events[3]["details"],
            Parsed(R"({"finish_reason":"eos_token","generated_tokens":4,"seed":null,"input_length":10})"));
  EXPECT_EQ(parsed->writer->End(kUsage), "");
}

// What might have begun a stop string comes with the end.
TEST(TgiAnswer, HeldBackTextIsInATokenOfTheStream) {
  ChoiceOutput first = Output(), rest;
  first.finish = FinishReason::kNone;
  first.stop_token = -1;
  rest.text = "TT";
  rest.finish = FinishReason::kStop;
  rest.stop_token = 2;
  const auto parsed = Parse(Body(""), TgiPath::kGenerateStream);
  EXPECT_EQ(Events(parsed->writer->Delta(first, kUsage)).size(), 3u);
  const auto events = Events(parsed->writer->Delta(rest, kUsage));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["token"], Parsed(R"({"id":169,"text":"TT","logprob":null,"special":false})"));
  EXPECT_EQ(events[1]["generated_text"], "h\xC3\xA9TT");
  EXPECT_EQ(events[1]["details"]["generated_tokens"], 4);
}

TEST(TgiAnswer, StreamWithAlternatives) {
  ChoiceOutput output = Output();
  output.logprobs[0].top = {{104, "h", -0.5f}};
  const auto events =
      Events(Parse(Body(R"("top_n_tokens":1)"), TgiPath::kGenerateStream)->writer->Delta(output, kUsage));
  EXPECT_EQ(events.at(0)["top_tokens"][0]["id"], 104);
  EXPECT_EQ(events.at(3)["top_tokens"], Json::array());
}

// Where the length ends it, the last token brings the end.
TEST(TgiAnswer, StreamThatWasCutOff) {
  ChoiceOutput output = Output();
  output.finish = FinishReason::kLength;
  output.stop_token = -1;
  const auto events = Events(Parse(Body(""), TgiPath::kGenerateStream)->writer->Delta(output, kUsage));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[2]["details"]["finish_reason"], "length");
  EXPECT_EQ(events[1]["details"], Json());
}

TEST(TgiAnswer, ErrorsAndInfo) {
  EXPECT_EQ(TgiDialect(TgiPath::kGenerate).ErrorBody(400, "no", "inputs"),
            R"({"error":"no","error_type":"validation"})");
  EXPECT_EQ(TgiDialect(TgiPath::kGenerate).ErrorBody(429, "no", ""), R"({"error":"no","error_type":"overloaded"})");
  EXPECT_EQ(Events(Parse(Body(""))->writer->Failure(Internal("broke"))).at(0),
            Parsed(R"({"error":"broke","error_type":"generation"})"));
  EXPECT_EQ(Parsed(TgiInfoBody({"path", 100, "1"}))["max_total_tokens"], 100);
}

}  // namespace
}  // namespace loramux::tgi_dialect_test
