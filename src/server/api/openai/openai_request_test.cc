#include "server/api/openai/openai_request.h"

#include <gmock/gmock.h>

#include "http/json_reader.h"

namespace loramux::openai_request_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const RequestLimits kLimits{1000};

// The body with additional fields, e.g. R"("n":2)".
std::string Chat(const std::string& extra) {
  return R"({"model":"m","messages":[{"role":"user","content":"hi"}])" + (extra.empty() ? "" : "," + extra) + "}";
}
std::string Completion(const std::string& extra) {
  return R"({"model":"m","prompt":"hi")" + (extra.empty() ? "" : "," + extra) + "}";
}

CompletionRequest GoodChat(const std::string& body) {
  auto request = ParseChatRequest(body, kLimits);
  EXPECT_TRUE(request.ok()) << body << ": " << request.error().message;
  return request.ok() ? *request : CompletionRequest();
}
CompletionRequest GoodCompletion(const std::string& body) {
  auto request = ParseCompletionRequest(body, kLimits);
  EXPECT_TRUE(request.ok()) << body << ": " << request.error().message;
  return request.ok() ? *request : CompletionRequest();
}

TEST(CompletionRequest, Defaults) {
  const CompletionRequest chat = GoodChat(Chat(""));
  EXPECT_EQ(chat.model, "m");
  EXPECT_EQ(chat.n, 1);
  EXPECT_FALSE(chat.max_tokens);
  EXPECT_FALSE(chat.seed);
  EXPECT_EQ(chat.priority, 0);
  EXPECT_EQ(chat.deadline_ms, 0);
  EXPECT_FALSE(chat.stream);
  EXPECT_FALSE(chat.add_special_tokens);
  EXPECT_TRUE(chat.chat.add_generation_prompt);
  EXPECT_EQ(chat.sampling.temperature, 1.0f);
  EXPECT_EQ(chat.sampling.top_logprobs, -1);
  EXPECT_EQ(chat.chat.template_context, R"({"messages":[{"role":"user","content":"hi"}]})");
  const CompletionRequest completion = GoodCompletion(Completion(""));
  EXPECT_TRUE(completion.add_special_tokens);
  EXPECT_TRUE(completion.skip_special_tokens);
  EXPECT_EQ(std::get<std::string>(completion.prompts.at(0)), "hi");
}

// What cannot be part of a prompt of the model's length is refused before work is done for it.
TEST(CompletionRequest, LengthsThatNoPromptHas) {
  const RequestLimits limits{.vocab_size = 1000, .max_tokens = 3, .max_string = 60};
  const auto error = [&](const std::string& body) { return ParseCompletionRequest(body, limits).error().message; };
  EXPECT_TRUE(ParseCompletionRequest(R"({"model":"m","prompt":[1,2,3]})", limits).ok());
  EXPECT_THAT(error(R"({"model":"m","prompt":[1,2,3,4]})"), HasSubstr("maximum context length is 3 tokens"));
  EXPECT_THAT(error(R"({"model":"m","prompt":[[1],[1,2,3,4]]})"), HasSubstr("`prompt[1]`"));
  EXPECT_THAT(error(R"({"model":"m","prompt":")" + std::string(61, 'x') + R"("})"),
              HasSubstr("expected strings of at most 60 characters, found one of 61. This model's maximum context"));
  std::string messages = R"({"role":"user","content":""})";
  for (int i = 0; i < 2; ++i) messages += R"(,{"role":"user","content":""})";
  EXPECT_TRUE(ParseChatRequest(R"({"model":"m","messages":[)" + messages + "]}", limits).ok());
  const auto four = ParseChatRequest(R"({"model":"m","messages":[)" + messages + R"(,{"role":"user"}]})", limits);
  EXPECT_THAT(four.error().message, HasSubstr("`messages`: expected at most 3 messages, found an array of 4"));
  std::string values = "[0";
  for (int i = 0; i < 5000; ++i) values += ",0";
  const auto many = ParseChatRequest(R"({"model":"m","messages":[],"other":)" + values + "]}", limits);
  EXPECT_THAT(many.error().message, HasSubstr("too complex: expected at most 4144 JSON values"));
}

TEST(CompletionRequest, DefaultsOfTheModelAreForWhatIsNotSaid) {
  RequestDefaults defaults;
  defaults.sampling.temperature = 0.5f;
  defaults.sampling.top_k = 20;
  defaults.sampling.repetition_penalty = 1.25f;
  defaults.max_output_tokens = 8;
  CompletionRequest chat = GoodChat(Chat(R"("top_k":0,"min_tokens":8,"logit_bias":{"7":1},"logprobs":true)"));
  ASSERT_TRUE(chat.TakeDefaults(defaults).ok());
  EXPECT_EQ(chat.sampling.temperature, 0.5f);
  EXPECT_EQ(chat.sampling.top_k, 0);
  EXPECT_EQ(chat.sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(chat.logit_bias.size(), 1u);
  EXPECT_EQ(chat.sampling.top_logprobs, 0);
  CompletionRequest completion = GoodCompletion(Completion(""));
  ASSERT_TRUE(completion.TakeDefaults(defaults).ok());
  EXPECT_EQ(completion.sampling.top_k, 20);
  CompletionRequest longer = GoodChat(Chat(R"("min_tokens":9)"));
  const Status refused = longer.TakeDefaults(defaults);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().param, "min_tokens");
  EXPECT_THAT(
      refused.error().message,
      HasSubstr("`min_tokens`: expected at most max_new_tokens of the model's generation_config.json (8), found 9"));
}

// Each number that a model may have a default for is the client's where the client gives it.
TEST(CompletionRequest, DefaultsReplaceNoNumberOfTheClient) {
  const RequestDefaults defaults{.sampling = {.temperature = 9,
                                              .top_k = 9,
                                              .top_p = 0.9f,
                                              .min_p = 0.9f,
                                              .presence_penalty = 0.9f,
                                              .frequency_penalty = 0.9f,
                                              .repetition_penalty = 9}};
  CompletionRequest said = GoodChat(Chat(R"("temperature":1,"top_k":2,"top_p":0.5,"min_p":0.25,"presence_penalty":0,)"
                                         R"("frequency_penalty":-1,"repetition_penalty":2)"));
  ASSERT_TRUE(said.TakeDefaults(defaults).ok());
  const SamplingParams& own = said.sampling;
  EXPECT_EQ(std::tuple(own.temperature, own.top_k, own.top_p, own.min_p), std::tuple(1.0f, 2, 0.5f, 0.25f));
  EXPECT_EQ(std::tuple(own.presence_penalty, own.frequency_penalty, own.repetition_penalty),
            std::tuple(0.0f, -1.0f, 2.0f));
  CompletionRequest silent = GoodChat(Chat(""));
  ASSERT_TRUE(silent.TakeDefaults(defaults).ok());
  const SamplingParams& taken = silent.sampling;
  EXPECT_EQ(std::tuple(taken.temperature, taken.top_k, taken.top_p, taken.min_p), std::tuple(9.0f, 9, 0.9f, 0.9f));
  EXPECT_EQ(std::tuple(taken.presence_penalty, taken.frequency_penalty, taken.repetition_penalty),
            std::tuple(0.9f, 0.9f, 9.0f));
}

TEST(CompletionRequest, BoundsLogprobsOfAllChoices) {
  const std::string prompts = R"({"model":"m","prompt":["a","b"],"n":)";
  EXPECT_EQ(GoodCompletion(prompts + R"(64,"logprobs":20})").n, 64);
  const auto more = ParseCompletionRequest(prompts + R"(65,"logprobs":20})", kLimits);
  EXPECT_THAT(more.error().message, HasSubstr("`logprobs`: expected at most 2560 in all choices together, found 2600"));
}

TEST(CompletionRequest, ReadsEveryField) {
  const CompletionRequest request = GoodCompletion(Completion(
      R"("max_tokens":7,"temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"n":3,"stream":true,
         "stream_options":{"include_usage":true,"continuous_usage_stats":true},"stop":["a","b"],"stop_token_ids":[3,4],
         "ignore_eos":true,"min_tokens":2,"seed":-1,"logprobs":5,"logit_bias":{"7":-100,"8":1.5},"presence_penalty":1,
         "priority":-10,"deadline_ms":250,
         "frequency_penalty":-2,"repetition_penalty":1.5,"skip_special_tokens":false,"add_special_tokens":false,
         "include_stop_str_in_output":true,"best_of":3,"suffix":null,"user":"x","unknown":{"a":[1]},"echo":false)"));
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_FLOAT_EQ(request.sampling.top_p, 0.9f);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_FLOAT_EQ(request.sampling.min_p, 0.1f);
  EXPECT_EQ(request.n, 3);
  EXPECT_TRUE(request.stream && request.include_usage && request.continuous_usage);
  EXPECT_THAT(request.stop, ElementsAre("a", "b"));
  EXPECT_THAT(request.stop_token_ids, ElementsAre(3, 4));
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.min_tokens, 2);
  EXPECT_EQ(request.priority, -10);
  EXPECT_EQ(request.deadline_ms, 250);
  EXPECT_EQ(request.seed, UINT64_MAX);
  EXPECT_EQ(request.sampling.top_logprobs, 5);
  EXPECT_THAT(request.logit_bias, ElementsAre(std::pair(7, -100.f), std::pair(8, 1.5f)));
  EXPECT_FLOAT_EQ(request.sampling.presence_penalty, 1);
  EXPECT_FLOAT_EQ(request.sampling.frequency_penalty, -2);
  EXPECT_FLOAT_EQ(request.sampling.repetition_penalty, 1.5f);
  EXPECT_FALSE(request.skip_special_tokens);
  EXPECT_FALSE(request.add_special_tokens);
  EXPECT_TRUE(request.include_stop);
}

TEST(CompletionRequest, AcceptsWhatClientsSend) {
  for (const char* extra :
       {R"("max_tokens":null,"stop":null,"seed":null,"n":null,"logprobs":null,"tools":null,"response_format":null)",
        R"("temperature":0,"top_k":-1,"top_p":1,"max_tokens":5.0)",
        R"("tools":[],"tool_choice":"auto","parallel_tool_calls":true,"response_format":{"type":"text"})",
        R"("guided_json":null,"use_beam_search":false,"bad_words":[],"best_of":1,"stop":[])",
        R"("store":false,"metadata":{},"service_tier":"auto","prediction":{"x":1})"}) {
    GoodChat(Chat(extra));
    GoodCompletion(Completion(extra));
  }
  EXPECT_EQ(GoodChat(Chat(R"("max_tokens":5,"max_completion_tokens":6)")).max_tokens, 6);
  EXPECT_EQ(GoodChat(Chat(R"("logprobs":true,"top_logprobs":20)")).sampling.top_logprobs, 20);
  EXPECT_EQ(GoodChat(Chat(R"("logprobs":true)")).sampling.top_logprobs, 0);
  EXPECT_EQ(GoodChat(Chat(R"("logprobs":false,"top_logprobs":0)")).sampling.top_logprobs, -1);
  EXPECT_FALSE(GoodChat(Chat(R"("stream":true,"stream_options":{"continuous_usage_stats":true})")).continuous_usage);
}

TEST(CompletionRequest, LogProbabilitiesOfAnyNumberAndOfAList) {
  EXPECT_EQ(GoodChat(Chat("")).prompt_logprobs, -1);
  EXPECT_EQ(GoodChat(Chat(R"("prompt_logprobs":0)")).prompt_logprobs, 0);
  EXPECT_EQ(GoodCompletion(Completion(R"("prompt_logprobs":700)")).prompt_logprobs, 700);
  EXPECT_EQ(GoodCompletion(Completion(R"("prompt_logprobs":-1)")).prompt_logprobs, 1000);  // the vocabulary
  const auto listed = GoodChat(Chat(R"("logprobs":true,"logprob_token_ids":[7,0,7])"));
  EXPECT_THAT(listed.logprob_token_ids, ElementsAre(7, 0, 7));
  EXPECT_THAT(GoodCompletion(Completion(R"("logprobs":5,"logprob_token_ids":[])")).logprob_token_ids, ElementsAre());
}

TEST(CompletionRequest, LogitsDoNotTellWhichChoiceIsLikeliest) {
  RequestDefaults defaults;
  defaults.sampling.logprobs_mode = LogprobsMode::kProcessedLogprobs;
  CompletionRequest request = GoodCompletion(Completion(R"("n":2)"));
  EXPECT_TRUE(request.TakeDefaults(defaults).ok());
  EXPECT_EQ(request.sampling.logprobs_mode, LogprobsMode::kProcessedLogprobs);
  defaults.sampling.logprobs_mode = LogprobsMode::kRawLogits;
  EXPECT_TRUE(request.TakeDefaults(defaults).ok());
  request.likeliest_choice = true;
  const Status refused = request.TakeDefaults(defaults);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().param, "n");
  EXPECT_THAT(refused.error().message, HasSubstr("raw_logits"));
}

TEST(CompletionRequest, PromptHasFourForms) {
  const auto ids = [](std::vector<TokenId> list) { return list; };
  EXPECT_THAT(GoodCompletion(R"({"model":"m","prompt":["a","b"]})").prompts, ElementsAre(Prompt("a"), Prompt("b")));
  EXPECT_THAT(GoodCompletion(R"({"model":"m","prompt":[1,2,999]})").prompts, ElementsAre(Prompt(ids({1, 2, 999}))));
  EXPECT_THAT(GoodCompletion(R"({"model":"m","prompt":[[1],[2,3]]})").prompts,
              ElementsAre(Prompt(ids({1})), Prompt(ids({2, 3}))));
  EXPECT_THAT(GoodCompletion(R"({"model":"m","prompt":""})").prompts, ElementsAre(Prompt("")));
}

TEST(CompletionRequest, ContentIsATextOrTextParts) {
  const CompletionRequest request = GoodChat(R"({"model":"m","messages":[
      {"role":"system","content":[{"type":"text","text":"a","cache_control":{}},{"type":"input_text","text":"b"},"c",
                                  {"type":"refusal","refusal":"d"}]},
      {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",
        "function":{"name":"f","arguments":"{\"z\":1,\"a\":[2]}"}}]},
      {"role":"tool","tool_call_id":"1","content":"3"},
      {"role":"assistant"},{"role":"assistant","content":null,"refusal":"no"},{"role":"user","content":[]}]})");
  const Json context = *ParseJson(request.chat.template_context);
  EXPECT_EQ(DumpJson(context["messages"][0]["content"]),
            R"([{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"text","text":"c"},)"
            R"({"type":"text","text":"d"}])");
  EXPECT_EQ(context["messages"][1]["content"], "");
  EXPECT_EQ(DumpJson(context["messages"][1]["tool_calls"][0]["function"]["arguments"]), R"({"z":1,"a":[2]})");
  EXPECT_EQ(context["messages"][2]["tool_call_id"], "1");
  EXPECT_EQ(context["messages"][3]["content"], "");
  EXPECT_EQ(context["messages"][4]["content"], "no");
  EXPECT_EQ(context["messages"][5]["content"], "");
}

// As vLLM reads what its own answers carry, and what clients make of them.
TEST(CompletionRequest, EmptyListsOfCallsAreAbsent) {
  for (const char* calls : {"[]", "null"}) {
    const CompletionRequest request = GoodChat(R"({"model":"m","messages":[{"role":"user","content":"q"},
        {"role":"assistant","content":"a","refusal":null,"tool_calls":)" +
                                               std::string(calls) + "}]}");
    const Json message = (*ParseJson(request.chat.template_context))["messages"][1];
    EXPECT_FALSE(message.contains("tool_calls")) << calls;
    EXPECT_EQ(message["content"], "a");
  }
}

TEST(CompletionRequest, CallsWithoutArgumentsHaveAnEmptyObject) {
  for (const char* arguments : {R"(,"arguments":null)", "", R"(,"arguments":"null")", R"(,"arguments":"")",
                                R"(,"arguments":"{}")", R"(,"arguments":{})"}) {
    const CompletionRequest request = GoodChat(R"({"model":"m","messages":[{"role":"assistant","tool_calls":[
        {"id":"1","type":"function","function":{"name":"f")" +
                                               std::string(arguments) + "}}]}]}");
    const Json call = (*ParseJson(request.chat.template_context))["messages"][0]["tool_calls"][0];
    EXPECT_EQ(DumpJson(call["function"]["arguments"]), "{}") << arguments;
  }
}

// Templates ask for the type.
TEST(CompletionRequest, ToolsWithoutATypeAreFunctions) {
  const CompletionRequest request =
      GoodChat(Chat(R"("tools":[{"function":{"name":"f"}},{"type":null,"function":{"name":"g"}}])"));
  EXPECT_TRUE(request.tools.offered->Has("f") && request.tools.offered->Has("g"));
  const Json context = *ParseJson(request.chat.template_context);
  for (const Json& tool : context["tools"]) EXPECT_EQ(tool["type"], "function");
}

TEST(CompletionRequest, TemplateSeesToolsAndVariables) {
  const CompletionRequest request = GoodChat(Chat(
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}],
         "chat_template_kwargs":{"enable_thinking":false},"add_generation_prompt":false,"documents":[{"text":"d"}])"));
  const Json context = *ParseJson(request.chat.template_context);
  EXPECT_EQ(DumpJson(context["tools"]), R"([{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}])");
  EXPECT_EQ(context["enable_thinking"], false);
  EXPECT_EQ(context["documents"][0]["text"], "d");
  EXPECT_FALSE(request.chat.add_generation_prompt);
}

TEST(CompletionRequest, ToolsThatMayBeCalled) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"x":{"type":"string"}}}}},
                  {"type":"function","function":{"name":"g"}}])";
  const ToolFields all = GoodChat(Chat(tools)).tools;
  ASSERT_NE(all.offered, nullptr);
  EXPECT_TRUE(all.offered->Has("f") && all.offered->Has("g") && !all.offered->Has("h"));
  EXPECT_EQ((*all.offered->Parameter("f", "x"))["type"], "string");
  EXPECT_EQ(all.offered->Parameter("f", "y"), nullptr);
  EXPECT_EQ(all.offered->Parameter("g", "x"), nullptr);
  EXPECT_TRUE(all.parallel && all.include_reasoning);
  const CompletionRequest none = GoodChat(Chat(tools + R"(,"tool_choice":"none")"));
  EXPECT_EQ(none.tools.offered, nullptr);
  EXPECT_EQ((*ParseJson(none.chat.template_context))["tools"].size(), 2u);  // the template sees them, as in vLLM
  const ToolFields one = GoodChat(Chat(tools + R"(,"parallel_tool_calls":false,"include_reasoning":false)")).tools;
  EXPECT_FALSE(one.parallel || one.include_reasoning);
  EXPECT_EQ(GoodChat(Chat(R"("tools":[])")).tools.offered, nullptr);
  EXPECT_EQ(GoodChat(Chat(tools + R"(,"tool_choice":"required")")).tools.choice, ToolChoice::kRequired);
  const ToolFields named =
      GoodChat(Chat(tools + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})")).tools;
  EXPECT_EQ(named.choice, ToolChoice::kNamed);
  EXPECT_EQ(named.function, "g");
}

TEST(CompletionRequest, ContinuesTheFinalMessage) {
  const CompletionRequest request = GoodChat(R"({"model":"m","continue_final_message":true,
      "messages":[{"role":"user","content":"q"},{"role":"assistant","content":"so"}]})");
  EXPECT_TRUE(request.chat.continue_final_message);
  EXPECT_FALSE(request.chat.add_generation_prompt);
  EXPECT_EQ(request.chat.final_message, "so");
  EXPECT_EQ(request.chat.final_part, "");
  const ChatPrompt parts = GoodChat(R"({"model":"m","continue_final_message":true,"messages":[{"role":"assistant",
      "content":[{"type":"text","text":"so"},{"type":"text","text":"it"},{"type":"text","text":""}]}]})")
                               .chat;
  EXPECT_EQ(parts.final_message, "so\nit");
  EXPECT_EQ(parts.final_part, "it");
}

struct Demanded {
  const char* extra;
  GrammarKind kind;
  const char* text;
  const char* field;
};

TEST(CompletionRequest, DemandsForStructuredOutput) {
  const Demanded cases[] = {
      {R"("response_format":{"type":"json_object"})", GrammarKind::kJsonSchema, R"({"type":"object"})",
       "response_format"},
      {R"("response_format":{"type":"json_object","schema":{"b":1,"a":2}})", GrammarKind::kJsonSchema,
       R"({"b":1,"a":2})", "response_format"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"enum":[1]}}})",
       GrammarKind::kJsonSchema, R"({"enum":[1]})", "response_format"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":null}})", GrammarKind::kJsonSchema,
       R"({"type":"object"})", "response_format"},
      {R"("structured_outputs":{"json":"{ }","regex":null,"_backend":""})", GrammarKind::kJsonSchema, "{ }",
       "structured_outputs"},
      {R"("structured_outputs":{"json_object":true,"disable_any_whitespace":true})", GrammarKind::kCompactJsonSchema,
       R"({"type":"object"})", "structured_outputs"},
      {R"("structured_outputs":{"regex":"a+","structural_tag":null})", GrammarKind::kRegex, "a+", "structured_outputs"},
      {R"("guided_json":{},"response_format":{"type":"text"})", GrammarKind::kJsonSchema, "{}", "guided_json"},
      {R"("guided_choice":["a.b","ä\n"],"guided_regex":null)", GrammarKind::kRegex, "(?:a\\x2Eb|ä\\x0A)",
       "guided_choice"},
      {R"("guided_grammar":"root ::= \"a\"")", GrammarKind::kGbnf, "root ::= \"a\"", "guided_grammar"},
      {R"("grammar":"%llguidance {}\nstart: \"::=\"")", GrammarKind::kLark, "%llguidance {}\nstart: \"::=\"",
       "grammar"},
      {R"("grammar":"start: \"a\"","json_schema":null)", GrammarKind::kLark, "start: \"a\"", "grammar"},
      {R"("json_schema":{"type":"null"})", GrammarKind::kJsonSchema, R"({"type":"null"})", "json_schema"},
  };
  for (const Demanded& demanded : cases) {
    for (const bool chat : {true, false}) {
      const auto request = chat ? ParseChatRequest(Chat(demanded.extra), kLimits)
                                : ParseCompletionRequest(Completion(demanded.extra), kLimits);
      ASSERT_TRUE(request.ok()) << demanded.extra << request.error().message;
      ASSERT_TRUE(request->output.has_value()) << demanded.extra;
      EXPECT_EQ(request->output->kind, demanded.kind) << demanded.extra;
      EXPECT_EQ(request->output->text, demanded.text);
      EXPECT_EQ(request->output->field, demanded.field);
    }
  }
  for (const char* nothing :
       {R"("response_format":{"type":"text"})", R"("structured_outputs":{})", R"("grammar":"")"}) {
    EXPECT_FALSE(GoodChat(Chat(nothing)).output.has_value()) << nothing;
  }
}

struct BadField {
  const char* extra;
  const char* param;
  const char* message;  // a part of it
};

// Bodies that are valid for both endpoints except for one field.
TEST(CompletionRequest, ErrorsNameTheField) {
  const BadField cases[] = {
      {R"("temperature":"hot")", "temperature", "expected a number from 0.0 to 100.0, found \"hot\""},
      {R"("temperature":-0.1)", "temperature", "found -0.1"},
      {R"("temperature":1e300)", "temperature", "found 1e+300"},
      {R"("top_p":0)", "top_p", "above 0.0"},
      {R"("top_p":1.1)", "top_p", "1.1"},
      {R"("top_p":true)", "top_p", "found true"},
      {R"("min_p":2)", "min_p", "found 2"},
      {R"("top_k":-2)", "top_k", "from -1"},
      {R"("top_k":1.5)", "top_k", "found 1.5"},
      {R"("n":0)", "n", "from 1 to 128, found 0"},
      {R"("n":129)", "n", "found 129"},
      {R"("n":"2")", "n", "found \"2\""},
      {R"("max_tokens":-1)", "max_tokens", "found -1"},
      {R"("max_tokens":99999999999999999999)", "max_tokens", "expected an integer"},
      {R"("max_completion_tokens":[])", "max_completion_tokens", "found an array of 0"},
      {R"("min_tokens":-1)", "min_tokens", "found -1"},
      {R"("min_tokens":9,"max_tokens":8)", "min_tokens", "at most max_tokens (8), found 9"},
      {R"("ignore_eos":1)", "ignore_eos", "true or false, found 1"},
      {R"("priority":11)", "priority", "from -10 to 10, found 11"},
      {R"("speculate":1)", "speculate", "true or false, found 1"},
      {R"("speculate":true)", "speculate", "this server does not speculate (--speculate ngram)"},
      {R"("speculative.n_max":4)", "speculative.n_max", "send `speculate`"},
      {R"("priority":-11)", "priority", "found -11"},
      {R"("priority":"high")", "priority", "found \"high\""},
      {R"("priority":0.5)", "priority", "found 0.5"},
      {R"("deadline_ms":0)", "deadline_ms", "from 1 to 86400000, found 0"},
      {R"("deadline_ms":86400001)", "deadline_ms", "found 86400001"},
      {R"("deadline_ms":-5)", "deadline_ms", "found -5"},
      {R"("seed":"x")", "seed", "found \"x\""},
      {R"("seed":1.5)", "seed", "found 1.5"},
      {R"("presence_penalty":2.1)", "presence_penalty", "found 2.1"},
      {R"("frequency_penalty":-3)", "frequency_penalty", "found -3"},
      {R"("repetition_penalty":0)", "repetition_penalty", "above 0.0"},
      {R"("stop":7)", "stop", "found 7"},
      {R"("stop":"")", "stop", "found \"\""},
      {R"("stop":["a",null])", "stop", "found null"},
      {R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])", "stop",
       "array of 17"},
      {R"("stop_token_ids":[1000])", "stop_token_ids[0]", "from 0 to 999, found 1000"},
      {R"("stop_token_ids":"1")", "stop_token_ids", "an array"},
      {R"("logit_bias":{"1000":1})", "logit_bias", "found \"1000\""},
      {R"("logit_bias":{"01":1})", "logit_bias", "found \"01\""},
      {R"("logit_bias":{"-1":1})", "logit_bias", "found \"-1\""},
      {R"("logit_bias":{"1":101})", "logit_bias", "`logit_bias.1`"},
      {R"("logit_bias":[1])", "logit_bias", "an object"},
      {R"("stream":"yes")", "stream", "found \"yes\""},
      {R"("stream_options":{"include_usage":true})", "stream_options", "only together with"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options", "`stream_options.include_usage`"},
      {R"("stream":true,"stream_options":true)", "stream_options", "an object"},
      {R"("skip_special_tokens":"no")", "skip_special_tokens", "true or false"},
      {R"("include_stop_str_in_output":0)", "include_stop_str_in_output", "true or false"},
      {R"("response_format":{"type":"xml"})", "response_format", "found \"xml\""},
      {R"("response_format":{"type":"json_schema"})", "response_format", "json_schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"strict":1}})", "response_format", "strict"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":[]}})", "response_format", "an object"},
      {R"("response_format":{})", "response_format", "found \"\""},
      {R"("response_format":"text")", "response_format", "an object"},
      {R"("best_of":2)", "best_of", "found 2"},
      {R"("cache_salt":"")", "cache_salt", "a string of 1 to 256 bytes, found \"\""},
      {R"("cache_salt":7)", "cache_salt", "found 7"},
      {R"("lora_path":["a","b"])", "lora_path", "the name of one adapter"},
      {R"("merged_adapters":{"ids":["a","b"],"merge_strategy":"ties"})", "merged_adapters", "merge_strategy"},
      {R"("prompt_logprobs":1001)", "prompt_logprobs", "from -1 to 1000"},
      {R"("logprob_token_ids":[7])", "logprob_token_ids", "only together with `logprobs`"},
      {R"("logprob_token_ids":[1000])", "logprob_token_ids[0]", "from 0 to 999"},
      {R"("guided_json":[])", "guided_json", "a JSON schema"},
      {R"("guided_regex":1)", "guided_regex", "a regular expression"},
      {R"("guided_choice":["a",""])", "guided_choice", "found \"\""},
      {R"("guided_choice":[])", "guided_choice", "found an array of 0"},
      {R"("guided_grammar":{})", "guided_grammar", "a grammar"},
      {R"("guided_whitespace_pattern":" ")", "guided_whitespace_pattern", "does not support"},
      {R"("guided_regex":"a","grammar":"root ::= \"a\"")", "grammar", "`guided_regex`"},
      {R"("structured_outputs":{"structural_tag":"{}"})", "structured_outputs", "structural_tag"},
      {R"("structured_outputs":{"json":{},"disable_additional_properties":true})", "structured_outputs",
       "does not support"},
      {R"("structured_outputs":{"json":{},"regex":"a"})", "structured_outputs", "expected one demand"},
      {R"("use_beam_search":true)", "use_beam_search", "does not support"},
      {R"("temperature":0,"temperature":1)", "temperature", "found it twice"},
  };
  for (const BadField& bad : cases) {
    for (const bool chat : {true, false}) {
      const auto request =
          chat ? ParseChatRequest(Chat(bad.extra), kLimits) : ParseCompletionRequest(Completion(bad.extra), kLimits);
      ASSERT_FALSE(request.ok()) << bad.extra;
      EXPECT_EQ(request.error().param, bad.param) << bad.extra;
      EXPECT_THAT(request.error().message, HasSubstr(bad.message));
      EXPECT_THAT(request.error().message, HasSubstr(bad.param));
    }
  }
}

TEST(CompletionRequest, ChatErrorsNameTheField) {
  const BadField cases[] = {
      {R"({"model":"m","messages":[{"role":"user"}],"max_tokens":0})", "max_tokens", "from 1"},
      {R"({})", "model", "found nothing"},
      {R"({"model":"","messages":[]})", "model", "found \"\""},
      {R"({"model":3,"messages":[]})", "model", "found 3"},
      {R"({"model":"m"})", "messages", "found nothing"},
      {R"({"model":"m","messages":[]})", "messages", "found an array of 0"},
      {R"({"model":"m","messages":"hi"})", "messages", "found \"hi\""},
      {R"({"model":"m","messages":["hi"]})", "messages[0]", "found \"hi\""},
      {R"({"model":"m","messages":[{"content":"x"}]})", "messages[0].role", "found nothing"},
      {R"({"model":"m","messages":[{"role":"user","content":"x"},{"role":"user","content":5}]})", "messages[1].content",
       "found 5"},
      {R"({"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]})", "messages[0].content[0].type",
       "found \"image_url\""},
      {R"({"model":"m","messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages[0].content[0].text",
       "found nothing"},
      {R"({"model":"m","messages":[{"role":"user","content":[7]}]})", "messages[0].content[0]", "found 7"},
      {R"({"model":"m","messages":[{"role":"user","content":[{"type":"refusal","text":"x"}]}]})",
       "messages[0].content[0].refusal", "found nothing"},
      {R"({"model":"m","messages":[{"role":"assistant","tool_calls":[{}]}]})", "messages[0].tool_calls[0].function",
       ""},
      {R"({"model":"m","messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"{"}}]}]})",
       "messages[0].tool_calls[0].function.arguments", "found \"{\""},
  };
  for (const BadField& bad : cases) {
    const auto request = ParseChatRequest(bad.extra, kLimits);
    ASSERT_FALSE(request.ok()) << bad.extra;
    EXPECT_EQ(request.error().param, bad.param) << bad.extra;
    EXPECT_THAT(request.error().message, HasSubstr(bad.message));
  }
  const BadField extras[] = {
      {R"("logprobs":3)", "logprobs", "true or false"},
      {R"("top_logprobs":3)", "top_logprobs", "without it"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs", "found 21"},
      {R"("tools":[{"type":"x"}])", "tools[0].type", "found \"x\""},
      {R"("tools":[{"type":"function"}])", "tools[0].function", "found nothing"},
      {R"("tools":[{"type":"function","function":{}}])", "tools[0].function.name", "found nothing"},
      {R"("tools":{})", "tools", "an array"},
      {R"("tool_choice":"required")", "tool_choice", "found \"required\""},
      {R"("tool_choice":{"type":"function"})", "tool_choice", "found an object"},
      {R"("tool_choice":{"type":"allowed_tools","function":{"name":"f"}})", "tool_choice", "found an object"},
      {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice", "found \"f\""},
      {R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])", "tools[0].function.parameters",
       "a JSON schema"},
      {R"("tools":[{"type":3,"function":{"name":"f"}}])", "tools[0].type", "found 3"},
      {R"("functions":[{"name":"f"}])", "functions", "does not support"},
      {R"("chat_template":"{{x}}")", "chat_template", "does not support"},
      {R"("chat_template_kwargs":{"messages":[]})", "chat_template_kwargs", "`messages`"},
      {R"("chat_template_kwargs":3)", "chat_template_kwargs", "an object"},
      {R"("echo":true)", "echo", "does not support"},
      {R"("add_generation_prompt":true,"continue_final_message":true)", "continue_final_message", "found true"},
  };
  for (const BadField& bad : extras) {
    const auto request = ParseChatRequest(Chat(bad.extra), kLimits);
    ASSERT_FALSE(request.ok()) << bad.extra;
    EXPECT_EQ(request.error().param, bad.param) << bad.extra;
    EXPECT_THAT(request.error().message, HasSubstr(bad.message));
  }
}

TEST(CompletionRequest, CompletionErrorsNameTheField) {
  const BadField cases[] = {
      {R"({"model":"m"})", "prompt", "found nothing"},
      {R"({"model":"m","prompt":[]})", "prompt", "found an array of 0"},
      {R"({"model":"m","prompt":{}})", "prompt", "found an object"},
      {R"({"model":"m","prompt":7})", "prompt", "found 7"},
      {R"({"model":"m","prompt":["a",1]})", "prompt[1]", "found 1"},
      {R"({"model":"m","prompt":[1,"a"]})", "prompt[1]", "found \"a\""},
      {R"({"model":"m","prompt":[1000]})", "prompt[0]", "from 0 to 999, found 1000"},
      {R"({"model":"m","prompt":[[1],[2,-3]]})", "prompt[1][1]", "found -3"},
      {R"({"model":"m","prompt":[[]]})", "prompt[0]", "at least one token id"},
      {R"({"model":"m","prompt":[[1],2]})", "prompt[1]", "found 2"},
      {R"({"model":"m","prompt":[true]})", "prompt[0]", "found true"},
      {R"({"model":"m","prompt":"x","logprobs":true})", "logprobs", "found true"},
      {R"({"model":"m","prompt":"x","logprobs":21})", "logprobs", "from 0 to 20, found 21"},
      {R"({"model":"m","prompt":"x","suffix":"y"})", "suffix", "does not support"},
      {R"({"model":"m","prompt":"x","prompt_logprobs":1,"stream":true})", "prompt_logprobs", "only without `stream`"},
      {R"({"model":"m","prompt":"x","prompt_logprobs":1001})", "prompt_logprobs", "from -1 to 1000"},
      {R"({"model":"m","prompt":"x","prompt_logprobs":-2})", "prompt_logprobs", "from -1 to 1000"},
      {R"({"model":"m","prompt":"x","logprobs":0,"logprob_token_ids":[1],"max_tokens":0})", "logprob_token_ids",
       "`max_tokens`: 0"},
      {R"({"model":"m","prompt":"x","logprobs":20,"n":128,"logprob_token_ids":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,)"
       R"(17,18,19,20,21]})",
       "logprob_token_ids", "at most 2560 in all choices together, found 2688"},
      {R"({"model":"m","prompt":["1","2","3","4","5","6","7","8","9"],"n":128})", "n", "found 1152"},
  };
  for (const BadField& bad : cases) {
    const auto request = ParseCompletionRequest(bad.extra, kLimits);
    ASSERT_FALSE(request.ok()) << bad.extra;
    EXPECT_EQ(request.error().param, bad.param) << bad.extra;
    EXPECT_THAT(request.error().message, HasSubstr(bad.message));
  }
}

TEST(CompletionRequest, TheBodyMustBeAnObject) {
  for (const char* body : {"[]", "3", "\"x\"", "null", "", "{\"model\":\"\xff\"}"}) {
    EXPECT_FALSE(ParseChatRequest(body, kLimits).ok()) << body;
    EXPECT_FALSE(ParseCompletionRequest(body, kLimits).ok()) << body;
  }
}

}  // namespace
}  // namespace loramux::openai_request_test
