// Tools and reasoning through the whole server: a scripted engine says what a model would.
#include <chrono>
#include <fstream>
#include <map>
#include <sstream>

#include <gmock/gmock.h>

#include "http/raw_client_for_test.h"
#include "server/server.h"
#include "server/server_fixture.h"

namespace loramux::tool_calls_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;

constexpr std::string_view kTools =
    R"(,"tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object",
    "properties":{"city":{"type":"string"}}}}},{"type":"function","function":{"name":"ping"}}])";
constexpr std::string_view kCall =
    "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>";

// A tokenizer with more special tokens, whose ids begin with 258.
Tokenizer WithSpecialTokens(std::initializer_list<std::string_view> tokens) {
  std::ifstream file(LORAMUX_SOURCE_DIR "/src/server/testdata/tokenizer.json");
  std::stringstream text;
  text << file.rdbuf();
  Json json = Json::parse(text.str());
  TokenId id = 258;
  for (const std::string_view token : tokens) {
    Json added = json["added_tokens"].back();
    added["id"] = id++;
    added["content"] = token;
    added["special"] = true;
    json["added_tokens"].push_back(added);
  }
  auto parsed = Tokenizer::Parse(json.dump(), "test");
  EXPECT_TRUE(parsed.ok()) << parsed.error().message;
  return std::move(parsed).value();
}

// What a client makes of a stream's deltas.
struct Gathered {
  std::string content, reasoning, finish;
  std::vector<Json> calls;
  int logprobs = 0;

  void Take(const Json& choice) {
    const Json& delta = choice["delta"];
    content += delta.value("content", "");
    reasoning += delta.value("reasoning", "");
    EXPECT_EQ(delta.value("reasoning", ""), delta.value("reasoning_content", ""));
    for (const Json& call : delta.value("tool_calls", Json::array())) TakeCall(call);
    if (choice["logprobs"].is_object()) logprobs += static_cast<int>(choice["logprobs"]["content"].size());
    if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
  }
  void TakeCall(const Json& call) {
    const auto index = call["index"].get<std::size_t>();
    if (call.contains("id")) {
      ASSERT_EQ(index, calls.size());
      EXPECT_EQ(call["type"], "function");
      calls.push_back(call["function"]);
      calls.back()["id"] = call["id"];
      return;
    }
    ASSERT_LT(index, calls.size());
    EXPECT_FALSE(call["function"].contains("name"));
    calls[index]["arguments"] =
        calls[index]["arguments"].get<std::string>() + call["function"]["arguments"].get<std::string>();
  }
};

class ToolCallsTest : public testing::Test {
 protected:
  ToolCallsTest() : service_([this](const GenerationRequest&) { return script_; }) {
    options_.http.port = 0;
    options_.completion.max_model_len = kTestMaxTokens;
    options_.tool_call_parsers = {"hermes"};
  }

  void Start(GrammarCompiler* grammars = nullptr) {
    ServerParts parts = fixture_.Parts(service_);
    if (grammars != nullptr) parts.grammars = grammars;
    auto server = Server::Start(options_, parts);
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = std::move(server).value();
  }
  ClientResponse Send(std::string_view extra) {
    const std::string body = R"({"model":"sql","messages":[{"role":"user","content":"hi"}])" + std::string(extra) + "}";
    return RawHttpClient(server_->port()).Do("POST", "/v1/chat/completions", body);
  }
  Json Choice(std::string_view extra) {
    const ClientResponse response = Send(extra);
    EXPECT_EQ(response.status, 200) << response.body;
    return response.json()["choices"][0];
  }
  Gathered Stream(std::string_view extra) {
    Gathered gathered;
    for (const std::string& event : Send(std::string(extra) + R"(,"stream":true)").events()) {
      const Json json = Json::parse(event, nullptr, false);
      if (json.is_object() && json.contains("choices") && !json["choices"].empty()) gathered.Take(json["choices"][0]);
    }
    return gathered;
  }

  ServerOptions options_;
  ServingFixture fixture_;
  Script script_ = Say(kCall);
  ScriptedService service_;
  std::unique_ptr<Server> server_;  // destroyed before the engine
};

TEST_F(ToolCallsTest, AnswerWithACall) {
  Start();
  const Json choice = Choice(kTools);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Let me see.");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  const Json& call = choice["message"]["tool_calls"][0];
  EXPECT_THAT(call["id"].get<std::string>(), MatchesRegex("chatcmpl-tool-[0-9a-f]{32}"));
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(DumpJson(call["function"]), R"({"name":"weather","arguments":"{\"city\": \"Bern\"}"})");
}

TEST_F(ToolCallsTest, ContentIsNullBesideCalls) {
  script_ =
      Say("<tool_call>{\"name\":\"ping\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"ping\"}</tool_call>");
  Start();
  const Json message = Choice(kTools)["message"];
  EXPECT_TRUE(message["content"].is_null());
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  EXPECT_NE(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);
}

TEST_F(ToolCallsTest, StreamOfACall) {
  Start();
  const auto events = Send(std::string(kTools) + R"(,"stream":true,"stream_options":{"include_usage":true})").events();
  EXPECT_EQ(DumpJson(Json::parse(events[0])["choices"][0]["delta"]), R"({"role":"assistant","content":""})");
  for (const std::string& event : events) EXPECT_THAT(event, testing::Not(HasSubstr("tool_call>")));
  const Gathered gathered = Stream(kTools);
  EXPECT_EQ(gathered.content, "Let me see.");
  ASSERT_EQ(gathered.calls.size(), 1u);
  EXPECT_EQ(gathered.calls[0]["name"], "weather");
  EXPECT_EQ(gathered.calls[0]["arguments"], R"({"city": "Bern"})");
  EXPECT_EQ(gathered.finish, "tool_calls");
}

// The arguments do not wait for the end of the call.
TEST_F(ToolCallsTest, ArgumentsAreStreamedAsTheyCome) {
  service_.HoldSteps();
  Start();
  RawHttpClient client(server_->port());
  client.Send(RawHttpClient::Format(
      "POST", "/v1/chat/completions",
      R"({"model":"sql","stream":true,"messages":[{"role":"user","content":"hi"}])" + std::string(kTools) + "}"));
  service_.AllowSteps(static_cast<std::int64_t>(kCall.find("Bern") + 1));
  EXPECT_TRUE(client.Await(R"("B)", 1));  // alone, or behind the quote that the arguments have before it
  service_.ReleaseSteps();
  EXPECT_EQ(client.Read().events().back(), "[DONE]");
}

TEST_F(ToolCallsTest, OnlyRequestsThatWantCallsGetThem) {
  Start();
  for (const std::string& extra :
       {std::string(), std::string(R"(,"tools":[])"), std::string(kTools) + R"(,"tool_choice":"none")"}) {
    const Json choice = Choice(extra);
    EXPECT_EQ(choice["message"]["content"], kCall) << extra;
    EXPECT_FALSE(choice["message"].contains("tool_calls"));
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_EQ(Stream(extra).content, kCall);
  }
}

TEST_F(ToolCallsTest, OneCallIfTheyMayNotBeParallel) {
  script_ = Say("<tool_call>{\"name\":\"ping\"}</tool_call><tool_call>{\"name\":\"weather\"}</tool_call>");
  script_.repeat = script_.endless = true;  // so that only the server can end it
  service_.set_step_time(std::chrono::milliseconds(1));
  Start();
  const std::string extra = std::string(kTools) + R"(,"parallel_tool_calls":false)";
  const Json choice = Choice(extra);
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(Stream(extra).calls.size(), 1u);
  EXPECT_TRUE(service_.WaitUntilIdleAfter(2));
}

TEST_F(ToolCallsTest, BrokenCallsAreContent) {
  const std::string text = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": Bern}}</tool_call>";
  script_ = Say(text);
  Start();
  const Json choice = Choice(kTools);
  EXPECT_EQ(choice["message"]["content"], text);
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "stop");
  const Gathered gathered = Stream(kTools);  // the beginning of the arguments cannot be taken back
  ASSERT_EQ(gathered.calls.size(), 1u);
  EXPECT_EQ(gathered.calls[0]["arguments"].get<std::string>() + gathered.content, "{\"city\": Bern}}</tool_call>");
  EXPECT_EQ(gathered.finish, "stop");
}

TEST_F(ToolCallsTest, TheLimitOfTokensCutsACall) {
  Start();
  const std::string extra = std::string(kTools) + R"(,"max_tokens":70)";
  const Json choice = Choice(extra);
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["content"], kCall.substr(0, 70));
  EXPECT_EQ(Stream(extra).finish, "length");
}

TEST_F(ToolCallsTest, StopStringsLogprobsAndChoices) {
  Start();
  const Json stopped = Choice(std::string(kTools) + R"(,"stop":"Bern")");
  EXPECT_EQ(stopped["stop_reason"], "Bern");
  EXPECT_EQ(stopped["message"]["content"], kCall.substr(0, kCall.find("Bern")));
  const std::string extra = std::string(kTools) + R"(,"logprobs":true,"top_logprobs":1)";
  EXPECT_EQ(Choice(extra)["logprobs"]["content"].size(), kCall.size());
  EXPECT_EQ(Stream(extra).logprobs, static_cast<int>(kCall.size()));
  const Json several = Send(std::string(kTools) + R"(,"n":3)").json();
  ASSERT_EQ(several["choices"].size(), 3u);
  for (const Json& choice : several["choices"]) EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(several["usage"]["completion_tokens"], 3 * kCall.size());
}

// Clients do not see special tokens, but the parser must.
TEST_F(ToolCallsTest, MarkersMayBeSpecialTokens) {
  fixture_.tokenizer = WithSpecialTokens({"<|python_tag|>"});
  options_.tool_call_parsers = {"llama3_json"};
  script_.tokens = {kBosToken, 258};
  for (const TokenId id : Bytes(R"(weather.call(city="Bern"))")) script_.tokens.push_back(id);
  Start();
  const Json message = Choice(kTools)["message"];
  EXPECT_TRUE(message["content"].is_null()) << message;
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], R"({"city": "Bern"})");
  EXPECT_EQ(Choice("")["message"]["content"], R"(weather.call(city="Bern"))");
  EXPECT_EQ(Choice(R"(,"skip_special_tokens":false)")["message"]["content"],
            R"(<s><|python_tag|>weather.call(city="Bern"))");
}

// Clients do not see special tokens, but may name them in stop strings, alone or with text around them.
TEST_F(ToolCallsTest, StopStringsMayBeSpecialTokens) {
  fixture_.tokenizer = WithSpecialTokens({"<|eot|>", "<|x|>"});
  script_.tokens = Bytes("Hi.");
  script_.tokens.push_back(259);
  for (const TokenId id : Bytes("\nSo")) script_.tokens.push_back(id);
  script_.tokens.push_back(258);
  for (const TokenId id : Bytes("<|eot|> more")) script_.tokens.push_back(id);
  Start();
  struct Case {
    const char *stop, *content, *matched;
  };
  const Case cases[] = {{"<|x|>", "Hi.", "<|x|>"},
                        {"<|eot|>", "Hi.\nSo", "<|eot|>"},
                        {"i.<|x|>", "H", "i.<|x|>"},
                        {"<|x|>\nS", "Hi.", "<|x|>\nS"},
                        {".<|x|>\nSo<|eot|><", "Hi", ".<|x|>\nSo<|eot|><"},
                        {"|eot|", "Hi.\nSo<", "|eot|"},
                        {".\nS", "Hi", ".\nS"},
                        {"<|x|>S", "Hi.\nSo<|eot|> more", nullptr}};
  for (const auto& [stop, content, matched] : cases) {
    const std::string extra = R"(,"stop":[)" + DumpJson(Json(stop)) + "]";
    const Json reason = matched == nullptr ? Json() : Json(matched);
    const Json choice = Choice(extra);
    EXPECT_EQ(choice["message"]["content"], content) << stop;
    EXPECT_EQ(choice["stop_reason"], reason) << stop;
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_EQ(Stream(extra).content, content) << stop;
    EXPECT_EQ(Stream(std::string(kTools) + extra).content, content) << stop;
    const std::string with_stop = matched == nullptr ? std::string(content) : content + std::string(stop);
    EXPECT_EQ(Choice(extra + R"(,"include_stop_str_in_output":true)")["message"]["content"], with_stop) << stop;
    const Json message =
        RawHttpClient(server_->port())
            .Do("POST", "/v1/messages",
                R"({"model":"sql","max_tokens":99,"messages":[{"role":"user","content":"x"}],"stop_sequences":[)" +
                    DumpJson(Json(stop)) + "]}")
            .json();
    EXPECT_EQ(message["content"][0]["text"], content) << message;
    EXPECT_EQ(message["stop_sequence"], reason);
    EXPECT_EQ(message["stop_reason"], matched == nullptr ? "end_turn" : "stop_sequence");
    const Json completion =
        RawHttpClient(server_->port())
            .Do("POST", "/v1/completions", R"({"model":"sql","prompt":"x","max_tokens":99)" + extra + "}")
            .json();
    EXPECT_EQ(completion["choices"][0]["text"], content);
    EXPECT_EQ(completion["choices"][0]["stop_reason"], reason);
  }
  EXPECT_EQ(Choice(R"(,"stop":"<|x|>","skip_special_tokens":false)")["message"]["content"], "Hi.");
  EXPECT_EQ(Choice(R"(,"stop":"<|x|>","min_tokens":5)")["message"]["content"], "Hi.\nSo<|eot|> more");
}

// The token that ends every answer may be named, too.
TEST_F(ToolCallsTest, StopStringsMayNameTheEnd) {
  fixture_.tokenizer = WithSpecialTokens({"<|eot|>"});
  script_ = Say("Hi.");
  script_.stop_token = 258;
  Start();
  for (const char* more : {"", R"(,"skip_special_tokens":false)"}) {
    for (const auto& [stop, content, found] : {std::tuple("<|eot|>", "Hi.", true), std::tuple("i.<|eot|>", "H", true),
                                               std::tuple("<|eot|>x", "Hi.", false), std::tuple("eot", "Hi.", false)}) {
      const std::string extra = R"(,"stop":")" + std::string(stop) + '"' + more;
      const Json choice = Choice(extra);
      EXPECT_EQ(choice["message"]["content"], content) << stop;
      EXPECT_EQ(choice["stop_reason"], found ? Json(stop) : Json()) << stop;
      EXPECT_EQ(choice["finish_reason"], "stop");
      EXPECT_EQ(Stream(extra).content, content);
    }
  }
}

// A stop string cuts a call; the token that ends one does not.
TEST_F(ToolCallsTest, StopsWithinACallOfQwenCoder) {
  fixture_.tokenizer = WithSpecialTokens({"<|eot|>"});
  options_.tool_call_parsers = {"qwen3_coder"};
  const std::string text = "<function=weather>\n<parameter=city>\nBern\n";
  script_ = Say(text);
  script_.tokens.push_back(258);
  for (const TokenId id : Bytes("</parameter>")) script_.tokens.push_back(id);
  Start();
  const Json cut = Choice(std::string(kTools) + R"(,"stop":"ern")");
  EXPECT_EQ(cut["message"]["content"], text.substr(0, text.find("ern")));
  EXPECT_EQ(Stream(std::string(kTools) + R"(,"max_tokens":40)").content, text.substr(0, 40));
  const Json ended = Choice(std::string(kTools) + R"(,"stop":"<|eot|>")");
  EXPECT_EQ(ended["message"]["tool_calls"][0]["function"]["arguments"], R"({"city": "Bern"})");
  EXPECT_EQ(ended["finish_reason"], "tool_calls");
}

TEST_F(ToolCallsTest, AdaptersMayDiffer) {
  options_.tool_call_parsers = {"none", "sql=mistral"};
  script_ = Say(R"([TOOL_CALLS]weather{"city": "Bern"})");
  Start();
  const Json message = Choice(kTools)["message"];
  EXPECT_THAT(message["tool_calls"][0]["id"].get<std::string>(), MatchesRegex("[0-9A-Za-z]{9}"));
  const Json base =
      RawHttpClient(server_->port())
          .Do("POST", "/v1/chat/completions",
              R"({"model":"base","messages":[{"role":"user","content":"hi"}])" + std::string(kTools) + "}")
          .json();
  EXPECT_EQ(base["choices"][0]["message"]["content"], R"([TOOL_CALLS]weather{"city": "Bern"})");
}

TEST_F(ToolCallsTest, UnknownParsersAreNamed) {
  for (const std::string& name : {std::string("hermse"), std::string("sql=x")}) {
    options_.tool_call_parsers = {name};
    const auto server = Server::Start(options_, fixture_.Parts(service_));
    ASSERT_FALSE(server.ok());
    EXPECT_THAT(server.error().message, HasSubstr("--tool-call-parser: expected auto, none, gemma4, granite, hermes"));
  }
}

TEST_F(ToolCallsTest, Reasoning) {
  options_.reasoning_parsers = {"qwen3"};
  script_ = Say("<think>\nHm.\n</think>\n\nYes.");
  Start();
  const Json message = Choice("")["message"];
  EXPECT_EQ(message["reasoning"], "Hm.");
  EXPECT_EQ(message["reasoning_content"], "Hm.");
  EXPECT_EQ(message["content"], "Yes.");
  const Gathered gathered = Stream("");
  EXPECT_EQ(gathered.reasoning, "Hm.");
  EXPECT_EQ(gathered.content, "Yes.");
  EXPECT_EQ(gathered.finish, "stop");
  EXPECT_FALSE(Choice(R"(,"include_reasoning":false)")["message"].contains("reasoning"));
  EXPECT_EQ(Stream(R"(,"include_reasoning":false)").reasoning, "");
}

TEST_F(ToolCallsTest, ReasoningBeforeACall) {
  options_.reasoning_parsers = {"deepseek_r1"};
  script_ = Say("Hm. <tool_call> or not?\n</think>\n\n<tool_call>{\"name\":\"ping\"}</tool_call>");
  Start();
  const Json choice = Choice(kTools);
  EXPECT_EQ(choice["message"]["reasoning"], "Hm. <tool_call> or not?");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "ping");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const Gathered gathered = Stream(kTools);
  EXPECT_EQ(gathered.reasoning, "Hm. <tool_call> or not?");
  EXPECT_EQ(gathered.calls.size(), 1u);
}

// A template that opens the reasoning says where the answer begins; one that closes it says that there is none.
TEST_F(ToolCallsTest, ThePromptMayOpenTheReasoning) {
  auto parsed = ChatTemplate::Parse(
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt "
      "%}[assistant]<think>\n"
      "{% if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}{% endif %}",
      "{}", "test template");
  ASSERT_TRUE(parsed.ok());
  fixture_.chat_template = std::move(parsed).value();
  script_ = Say("Hm.</think>Yes.");
  Start();
  EXPECT_EQ(Choice("")["message"]["reasoning"], "Hm.");
  const Json closed = Choice(R"(,"chat_template_kwargs":{"enable_thinking":false})")["message"];
  EXPECT_FALSE(closed.contains("reasoning"));
  EXPECT_EQ(closed["content"], "Hm.</think>Yes.");
  const auto continued = [this](const std::string& content) {
    const std::string body =
        R"({"model":"sql","continue_final_message":true,"messages":[{"role":"user","content":"hi"},)"
        R"({"role":"assistant","content":")" +
        content + "\"}]}";
    return RawHttpClient(server_->port()).Do("POST", "/v1/chat/completions", body).json()["choices"][0]["message"];
  };
  EXPECT_EQ(continued("<think>I")["reasoning"], "Hm.");
  EXPECT_EQ(continued("<think>I</think>No")["content"], "Hm.</think>Yes.");
}

// Whether the constraint allows each of the tokens in turn, and its end behind them.
bool Accepts(const std::shared_ptr<TokenConstraint>& constraint, const std::vector<TokenId>& tokens) {
  const auto allows = [&constraint](TokenId token) {
    const auto allowed = constraint->Allowed();
    const auto id = static_cast<std::size_t>(token);
    return id / 32 < allowed.size() && (allowed[id / 32] >> (id % 32) & 1) != 0;
  };
  for (const TokenId token : tokens) {
    if (!allows(token)) return false;
    constraint->Advance(token);
  }
  return allows(kEosToken);
}

constexpr std::string_view kObject = R"(,"response_format":{"type":"json_object"})";

TEST_F(ToolCallsTest, AConstrainedAnswerMayReasonFirst) {
  options_.reasoning_parsers = {"qwen3"};
  fixture_.tokenizer = WithSpecialTokens({"<think>", "</think>"});
  const auto grammars = *GrammarCompiler::Create(fixture_.tokenizer, std::vector<TokenId>{kEosToken});
  script_.tokens = {258, 'H', 'm', 259, '\n', '{', '}'};
  Start(grammars.get());
  const Json body = Send(kObject).json();
  EXPECT_EQ(body["choices"][0]["message"]["reasoning"], "Hm");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "{}");
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 4);
  EXPECT_TRUE(Accepts(service_.submitted().back().constraint, script_.tokens));
  for (const std::vector<TokenId>& wrong : {std::vector<TokenId>{258, 'H', 'm', 259, 'x'}, {'x'}, {258, 'H', 'm'}}) {
    Send(kObject);
    EXPECT_FALSE(Accepts(service_.submitted().back().constraint, wrong));
  }
  Send(kObject);
  EXPECT_TRUE(Accepts(service_.submitted().back().constraint, {'{', '}'}));  // or it does not reason
}

TEST_F(ToolCallsTest, AConstrainedAnswerHasNoReasoningIfItsTagsAreNoTokens) {
  options_.reasoning_parsers = {"qwen3"};
  const auto grammars = *GrammarCompiler::Create(fixture_.tokenizer, std::vector<TokenId>{kEosToken});
  script_ = Say("{}");
  Start(grammars.get());
  EXPECT_EQ(Choice(kObject)["message"]["content"], "{}");
  EXPECT_TRUE(Accepts(service_.submitted().back().constraint, script_.tokens));
  Send(kObject);
  EXPECT_FALSE(Accepts(service_.submitted().back().constraint, {'<'}));
}

}  // namespace
}  // namespace loramux::tool_calls_test
