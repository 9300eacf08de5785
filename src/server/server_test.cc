// The whole server on a loopback port, with a scripted engine behind it.
#include "server/server.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <gmock/gmock.h>

#include "auth/tenancy.h"
#include "auth/vouched_caller.h"
#include "http/raw_client_for_test.h"
#include "server/server_fixture.h"

namespace loramux::server_test {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

std::string Chat(const std::string& extra = "") {
  return R"({"model":"sql","messages":[{"role":"user","content":"hi"}])" + extra + "}";
}
std::string Completion(const std::string& extra = "") { return R"({"model":"base","prompt":"p")" + extra + "}"; }

class ServerTest : public testing::Test {
 protected:
  ServerTest() : service_([this](const GenerationRequest& request) { return director_(request); }) {
    options_.http.port = 0;
    options_.http.linger_timeout = 200ms;
    options_.model_path = "models/base";
    options_.completion.max_model_len = kTestMaxTokens;
  }

  void Start() {
    auto server = Server::Start(options_, fixture_.Parts(service_));
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = std::move(server).value();
  }
  void Start(ScriptedService::Director director) {
    director_ = std::move(director);
    Start();
  }
  RawHttpClient Connect(int receive_bytes = 0) { return RawHttpClient(server_->port(), receive_bytes); }

  // Returns the text of each choice, concatenated from the events of a stream.
  static std::map<int, std::string> Texts(const ClientResponse& response) {
    std::map<int, std::string> texts;
    for (const std::string& event : response.events()) {
      const Json json = Json::parse(event, nullptr, false);
      if (json.is_discarded() || !json.contains("choices")) continue;
      for (const Json& choice : json["choices"]) {
        const Json& text = choice.contains("delta") ? choice["delta"]["content"] : choice["text"];
        texts[choice["index"].get<int>()] += text.get<std::string>();
      }
    }
    return texts;
  }

  ServerOptions options_;
  ServingFixture fixture_;
  ScriptedService::Director director_ = [](const GenerationRequest&) { return Say("hello"); };
  ScriptedService service_;
  std::unique_ptr<Server> server_;  // destroyed before the engine
};

TEST_F(ServerTest, Chat) {
  Start();
  const ClientResponse response = Connect().Do("POST", "/v1/chat/completions", Chat());
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.Header("Content-Type"), "application/json");
  const Json json = response.json();
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "sql");
  EXPECT_EQ(json["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(json["choices"][0]["message"]["content"], "hello");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 20);  // <s>[user]hi[assistant]
  EXPECT_EQ(json["usage"]["completion_tokens"], 5);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 10);
}

TEST_F(ServerTest, ChatStream) {
  Start();
  RawHttpClient client = Connect();
  const ClientResponse response =
      client.Do("POST", "/v1/chat/completions", Chat(R"(,"stream":true,"stream_options":{"include_usage":true})"));
  EXPECT_EQ(response.status, 200);
  EXPECT_THAT(response.Header("Content-Type"), HasSubstr("text/event-stream"));
  EXPECT_EQ(response.Header("Transfer-Encoding"), "chunked");
  const auto events = response.events();
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(Json::parse(events[0])["object"], "chat.completion.chunk");
  EXPECT_EQ(DumpJson(Json::parse(events[0])["choices"][0]["delta"]), R"({"role":"assistant","content":""})");
  EXPECT_EQ(events.back(), "[DONE]");
  const Json usage = Json::parse(events[events.size() - 2]);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["total_tokens"], 25);
  EXPECT_EQ(Json::parse(events[events.size() - 3])["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(Texts(response)[0], "hello");
  EXPECT_EQ(client.Do("POST", "/v1/chat/completions", Chat()).status, 200);  // the connection stays usable
}

TEST_F(ServerTest, TokensAreStreamedAsTheyCome) {
  service_.HoldSteps();
  Start();
  RawHttpClient client = Connect();
  client.Send(RawHttpClient::Format("POST", "/v1/completions", Completion(R"(,"stream":true)")));
  for (int token = 1; token <= 5; ++token) {
    service_.AllowSteps(1);
    ASSERT_TRUE(client.Await("data: ", token));  // before the engine makes the next one
  }
  service_.AllowSteps(1);
  const ClientResponse response = client.Read();
  const auto events = response.events();
  ASSERT_EQ(events.size(), 7u);  // five tokens, the end, [DONE]
  EXPECT_EQ(Json::parse(events[0])["choices"][0]["text"], "h");
  EXPECT_EQ(Json::parse(events[0])["object"], "text_completion");
}

TEST_F(ServerTest, SeveralChoices) {
  Start([n = 0](const GenerationRequest&) mutable { return Say("choice " + std::to_string(n++ % 3)); });
  const auto expected = ElementsAre(std::pair(0, "choice 0"), std::pair(1, "choice 1"), std::pair(2, "choice 2"));
  EXPECT_THAT(Texts(Connect().Do("POST", "/v1/chat/completions", Chat(R"(,"n":3,"stream":true)"))), expected);
  const Json json = Connect().Do("POST", "/v1/completions", Completion(R"(,"n":3)")).json();
  ASSERT_EQ(json["choices"].size(), 3u);
  EXPECT_EQ(json["choices"][2]["text"], "choice 2");
}

TEST_F(ServerTest, SeveralPrompts) {
  Start([](const GenerationRequest& request) {
    Script script;
    script.tokens = {request.prompt.back(), '!'};
    return script;
  });
  const Json texts = Connect().Do("POST", "/v1/completions", R"({"model":"base","prompt":["a","b"],"n":2})").json();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(texts["choices"][i]["index"], i);
    EXPECT_EQ(texts["choices"][i]["text"], i < 2 ? "a!" : "b!");
  }
  const Json ids = Connect().Do("POST", "/v1/completions", R"({"model":"base","prompt":[[65],[66,67]]})").json();
  EXPECT_EQ(ids["choices"][1]["text"], "C!");
  EXPECT_EQ(ids["usage"]["prompt_tokens"], 3);
}

TEST_F(ServerTest, StopStringsEndTheGeneration) {
  service_.set_step_time(1ms);
  Start([](const GenerationRequest&) {
    Script script = Say("abc END ");
    script.repeat = script.endless = true;
    return script;
  });
  const Json json = Connect().Do("POST", "/v1/completions", Completion(R"(,"stop":["END"],"max_tokens":4000)")).json();
  EXPECT_EQ(json["choices"][0]["text"], "abc ");
  EXPECT_EQ(json["choices"][0]["stop_reason"], "END");
  EXPECT_EQ(json["usage"]["completion_tokens"], 7);
  EXPECT_TRUE(service_.WaitUntilIdleAfter(1));
  EXPECT_EQ(service_.cancelled(), 1);
}

TEST_F(ServerTest, CharactersAreNeverSplit) {
  service_.set_step_time(1ms);
  Start([](const GenerationRequest&) { return Say("a😀ä€"); });
  const ClientResponse response = Connect().Do("POST", "/v1/chat/completions", Chat(R"(,"stream":true)"));
  EXPECT_EQ(Texts(response)[0], "a😀ä€");
  EXPECT_EQ(response.body.find("\xEF\xBF\xBD"), std::string::npos);
}

TEST_F(ServerTest, Logprobs) {
  Start();
  const Json chat = Connect().Do("POST", "/v1/chat/completions", Chat(R"(,"logprobs":true,"top_logprobs":2)")).json();
  const Json& content = chat["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 5u);
  EXPECT_EQ(content[0]["token"], "h");
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
  const ClientResponse stream =
      Connect().Do("POST", "/v1/completions", Completion(R"(,"logprobs":1,"stream":true,"stop":["ello"])"));
  std::vector<std::string> tokens;
  for (const std::string& event : stream.events()) {
    if (event == "[DONE]") continue;
    const Json json = Json::parse(event);
    for (const Json& token : json["choices"][0]["logprobs"]["tokens"]) tokens.push_back(token);
  }
  EXPECT_THAT(tokens, ElementsAre("h", "e", "l", "l", "o"));
}

TEST_F(ServerTest, BadRequestsAreAnswered) {
  Start();
  RawHttpClient client = Connect();
  const ClientResponse unknown = client.Do("POST", "/v1/completions", R"({"model":"nope","prompt":"x"})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(
      unknown.body,
      R"({"error":{"message":"The model `nope` does not exist.","type":"NotFoundError","param":"model","code":404}})");
  for (const char* body : {"{", "[]", R"({"prompt":"x"})", R"({"model":"base","prompt":"x","n":0})"}) {
    const ClientResponse response = client.Do("POST", "/v1/completions", body);
    EXPECT_EQ(response.status, 400);
    EXPECT_EQ(response.json()["error"]["type"], "BadRequestError");
    EXPECT_TRUE(response.keep_alive);
  }
  EXPECT_EQ(client.Do("POST", "/v1/completions").status, 400);  // no body at all
  EXPECT_EQ(client.Do("GET", "/v1/completions").status, 405);
  EXPECT_EQ(client.Do("POST", "/v1/nothing", "{}").status, 404);
}

TEST_F(ServerTest, TheEngineMayRefuse) {
  Start([](const GenerationRequest& request) -> Result<Script> {
    if (request.prompt.size() > 10) return ResourceExhausted("the prompt is too long", "prompt");
    return Unavailable("shutting down");
  });
  const ClientResponse too_long = Connect().Do("POST", "/v1/chat/completions", Chat(R"(,"stream":true)"));
  EXPECT_EQ(too_long.status, 400);
  EXPECT_EQ(too_long.json()["error"]["message"], "the prompt is too long");
  const ClientResponse later = Connect().Do("POST", "/v1/completions", Completion());
  EXPECT_EQ(later.status, 503);
  EXPECT_EQ(later.Header("Retry-After"), "1");
}

TEST_F(ServerTest, FailuresBeforeAndAmidTheStream) {
  Start([](const GenerationRequest& request) {
    Script script = Say(request.prompt.size() > 10 ? "" : "ab");
    script.finish = FinishReason::kError;
    return script;
  });
  const ClientResponse early = Connect().Do("POST", "/v1/chat/completions", Chat(R"(,"stream":true)"));
  EXPECT_EQ(early.status, 500);
  EXPECT_EQ(early.json()["error"]["message"], "scripted failure");
  RawHttpClient client = Connect();
  service_.HoldSteps();
  client.Send(RawHttpClient::Format("POST", "/v1/completions", Completion(R"(,"stream":true,"n":2)")));
  service_.AllowSteps(1);
  ASSERT_TRUE(client.Await("data: "));  // the stream has begun before the engine fails
  service_.ReleaseSteps();
  const ClientResponse amid = client.Read();
  EXPECT_EQ(amid.status, 200);
  const auto events = amid.events();
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["code"], 500);
  EXPECT_EQ(client.Do("POST", "/v1/completions", Completion()).status, 500);
}

TEST_F(ServerTest, LeavingClientsCancel) {
  service_.set_step_time(2ms);
  Start([](const GenerationRequest&) {
    Script script = Say("and so on ");
    script.repeat = script.endless = true;
    return script;
  });
  int expected = 0;
  for (const char* extra : {R"(,"stream":true)", ""}) {
    for (const bool reset : {false, true}) {
      RawHttpClient client = Connect();
      client.Send(RawHttpClient::Format("POST", "/v1/chat/completions", Chat(std::string(R"(,"n":2)") + extra)));
      if (*extra != '\0') {
        EXPECT_THAT(client.ReadUntil("data: "), HasSubstr("data: "));
      }
      EXPECT_TRUE(service_.WaitUntilRunning(2));
      if (reset)
        client.Reset();
      else
        client.Close();
      EXPECT_TRUE(service_.WaitUntilIdleAfter(2));
      EXPECT_EQ(service_.cancelled(), expected += 2);
    }
  }
}

TEST_F(ServerTest, ALeavingClientWithPipelinedRequestsCancels) {
  service_.set_step_time(2ms);
  Start([](const GenerationRequest&) {
    Script script = Say("and so on ");
    script.repeat = script.endless = true;
    return script;
  });
  RawHttpClient client = Connect();
  const std::string request = RawHttpClient::Format("POST", "/v1/completions", Completion(R"(,"max_tokens":4000)"));
  client.Send(request + request);
  EXPECT_TRUE(service_.WaitUntilRunning(1));
  client.Close();
  EXPECT_TRUE(service_.WaitUntilIdleAfter(1));
  EXPECT_EQ(service_.submitted().size(), 1u);
}

TEST_F(ServerTest, SlowReadersGetEverythingInLargerPieces) {
  const int count = 20000;
  options_.completion.max_buffered_bytes = std::size_t{8} << 20;  // for all tokens at once
  Start([](const GenerationRequest&) {
    Script script = Say("0123456789");
    script.repeat = true;
    return script;
  });
  RawHttpClient client = Connect(4096);
  client.Send(RawHttpClient::Format("POST", "/v1/completions", Completion(R"(,"stream":true,"max_tokens":20000)")));
  EXPECT_TRUE(service_.WaitUntilIdleAfter(1));  // the engine does not wait for the client
  const ClientResponse response = client.Read();
  EXPECT_EQ(Texts(response)[0].size(), static_cast<std::size_t>(count));
  EXPECT_LT(response.events().size(), static_cast<std::size_t>(count));
}

TEST_F(ServerTest, ReadersThatNeverReadAreCutOff) {
  options_.completion.max_buffered_bytes = 100'000;
  Start([](const GenerationRequest&) {
    Script script = Say("0123456789");
    script.repeat = script.endless = true;
    return script;
  });
  RawHttpClient client = Connect(4096);
  client.Send(RawHttpClient::Format("POST", "/v1/chat/completions", Chat(R"(,"stream":true,"n":128,"logprobs":true)")));
  EXPECT_TRUE(service_.WaitUntilIdleAfter(128));
  EXPECT_EQ(service_.cancelled(), 128);
  EXPECT_FALSE(client.Read().complete);
}

TEST_F(ServerTest, PipelinedCompletions) {
  service_.set_step_time(1ms);
  Start([](const GenerationRequest& request) { return Say(std::string(5, static_cast<char>(request.prompt.back()))); });
  RawHttpClient client = Connect();
  std::string requests;
  for (const char* prompt : {"a", "b", "c"}) {
    const bool stream = *prompt == 'b';
    requests += RawHttpClient::Format(
        "POST", "/v1/completions",
        std::string(R"({"model":"base","prompt":")") + prompt + "\"" + (stream ? R"(,"stream":true})" : "}"));
  }
  client.Send(requests);
  EXPECT_EQ(client.Read().json()["choices"][0]["text"], "aaaaa");
  EXPECT_EQ(Texts(client.Read())[0], "bbbbb");
  EXPECT_EQ(client.Read().json()["choices"][0]["text"], "ccccc");
}

TEST_F(ServerTest, ManyConnectionsAtOnce) {
  options_.http.threads = 2;
  options_.completion.work.threads = 2;
  service_.set_step_time(1ms);
  Start([](const GenerationRequest& request) { return Say(std::string(8, static_cast<char>(request.prompt.back()))); });
  std::vector<std::unique_ptr<RawHttpClient>> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(std::make_unique<RawHttpClient>(server_->port()));
    const std::string prompt(1, static_cast<char>('A' + i % 26));
    const std::string stream = i % 2 == 0 ? R"(,"stream":true)" : "";
    clients.back()->Send(RawHttpClient::Format("POST", "/v1/completions",
                                               R"({"model":"sql","prompt":")" + prompt + "\"" + stream + "}"));
  }
  for (int i = 0; i < 200; ++i) {
    const ClientResponse response = clients[static_cast<std::size_t>(i)]->Read();
    EXPECT_EQ(response.status, 200);
    const std::string text = i % 2 == 0 ? Texts(response)[0] : response.json()["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(text, std::string(8, static_cast<char>('A' + i % 26)));
  }
  EXPECT_EQ(service_.submitted().size(), 200u);
  EXPECT_EQ(service_.cancelled(), 0);
}

TEST_F(ServerTest, HostileBodiesDoNoHarm) {
  Start();
  RawHttpClient client = Connect();
  const std::string deep(1'000'000, '[');
  EXPECT_EQ(client.Do("POST", "/v1/chat/completions", deep).status, 400);
  EXPECT_EQ(client.Do("POST", "/v1/completions", R"({"model":"base","prompt":)" + deep).status, 400);
  EXPECT_EQ(client.Do("POST", "/v1/completions", std::string(1'000'000, '\xff')).status, 400);
  EXPECT_EQ(client.Do("POST", "/v1/completions", Completion()).status, 200);
}

TEST_F(ServerTest, ModelsAndProbes) {
  Start();
  RawHttpClient client = Connect();
  const Json models = client.Do("GET", "/v1/models").json();
  ASSERT_EQ(models["data"].size(), 2u);
  EXPECT_EQ(models["data"][0]["id"], "base");
  EXPECT_EQ(models["data"][0]["root"], "models/base");
  EXPECT_EQ(models["data"][1]["parent"], "base");
  EXPECT_EQ(client.Do("GET", "/v1/models/sql").json()["id"], "sql");
  const ClientResponse unknown = client.Do("GET", "/v1/models/a%2fb");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.json()["error"]["message"], "The model `a/b` does not exist.");
  EXPECT_EQ(client.Do("GET", "/health").json()["status"], "ok");
  EXPECT_EQ(client.Do("HEAD", "/health").status, 200);
  EXPECT_EQ(client.Do("GET", "/ping").status, 200);
  EXPECT_EQ(client.Do("POST", "/ping").status, 200);
  EXPECT_TRUE(client.Do("GET", "/version").json()["version"].is_string());
}

TEST_F(ServerTest, ProbesFailOnceNothingCanBeComputed) {
  Start();
  RawHttpClient client = Connect();
  service_.set_health(Unavailable("the device is lost"));
  for (const char* path : {"/health", "/ping"}) {
    const ClientResponse response = client.Do("GET", path);
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(response.json()["error"]["message"], "the device is lost");
  }
}

TEST_F(ServerTest, ShutdownLetsGenerationsEnd) {
  options_.http.drain_timeout = 120s;
  service_.HoldSteps();
  Start();
  RawHttpClient client = Connect(), probe = Connect();
  EXPECT_EQ(probe.Do("GET", "/health").status, 200);
  client.Send(RawHttpClient::Format("POST", "/v1/completions", Completion()));
  EXPECT_TRUE(service_.WaitUntilRunning(1));
  std::thread stopper([this] { server_->Shutdown(); });
  // 503, or closed behind an answer during which the shutdown began.
  EXPECT_TRUE(WaitUntil([&] { return probe.Do("GET", "/health").status != 200; }));
  service_.ReleaseSteps();
  const ClientResponse response = client.Read();
  EXPECT_EQ(response.json()["choices"][0]["text"], "hello");
  client.Close();
  stopper.join();
  EXPECT_EQ(service_.cancelled(), 0);
}

// A server that is paused when it shuts down takes no /resume any more.
TEST_F(ServerTest, ShutdownLetsGoWhatAPauseHolds) {
  options_.http.drain_timeout = 120s;
  options_.adapter_admin_key = "";
  service_.HoldSteps();
  ServerParts parts = fixture_.Parts(service_);
  parts.adapter_changes.load = [](const AdapterAdmin::LoadRequest&) { return NotFound("no adapters here"); };
  server_ = std::move(Server::Start(options_, std::move(parts))).value();
  RawHttpClient client = Connect();
  client.Send(RawHttpClient::Format("POST", "/v1/completions", Completion()));
  EXPECT_TRUE(service_.WaitUntilRunning(1));
  EXPECT_EQ(Connect().Do("POST", "/pause?mode=keep").status, 200);
  service_.ReleaseSteps();
  EXPECT_FALSE(client.HasBytes());
  const DrainReport report = server_->Shutdown();
  EXPECT_EQ(client.Read().json()["choices"][0]["text"], "hello");
  EXPECT_EQ(report.dropped.size(), 0u);
}

TEST_F(ServerTest, ShutdownCancelsWhatDoesNotEnd) {
  service_.set_step_time(2ms);
  options_.http.drain_timeout = 100ms;
  options_.http.cut_off_timeout = 120s;
  Start([](const GenerationRequest&) {
    Script script = Say("on ");
    script.repeat = script.endless = true;
    return script;
  });
  RawHttpClient stream = Connect(), whole = Connect();
  stream.Send(RawHttpClient::Format("POST", "/v1/completions", Completion(R"(,"stream":true,"max_tokens":100000)")));
  whole.Send(RawHttpClient::Format("POST", "/v1/completions", Completion(R"(,"max_tokens":100000)")));
  EXPECT_TRUE(service_.WaitUntilRunning(2));
  const DrainReport report = server_->Shutdown();
  EXPECT_EQ(report.in_flight, 2);
  EXPECT_THAT(report.dropped, ElementsAre(testing::EndsWith(" of base"), testing::EndsWith(" of base")));
  EXPECT_TRUE(service_.WaitUntilIdleAfter(2));
  EXPECT_EQ(service_.cancelled(), 2);
  const ClientResponse told = stream.Read();  // the client is told the reason
  EXPECT_TRUE(told.complete);
  const auto events = told.events();
  ASSERT_GE(events.size(), 2u);
  EXPECT_THAT(events[events.size() - 2], HasSubstr("shutting down"));
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(whole.Read().status, 503);
}

TEST_F(ServerTest, QuotasHoldUntilTheAnswerEnds) {
  options_.protection.adapter_limits.concurrency = 1;
  service_.set_step_time(2ms);
  Start([](const GenerationRequest& request) {
    Script script = Say("on ");
    script.repeat = true;
    script.endless = request.max_tokens == 100'000;
    return script;
  });
  RawHttpClient busy = Connect();
  busy.Send(RawHttpClient::Format("POST", "/v1/completions", Completion(R"(,"stream":true,"max_tokens":100000)")));
  busy.ReadUntil("data: ");
  RawHttpClient other = Connect();
  const ClientResponse refused = other.Do("POST", "/v1/completions", Completion(R"(,"max_tokens":2)"));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.Header("Retry-After"), "1");
  EXPECT_EQ(refused.json()["error"]["type"], "RateLimitError");
  EXPECT_EQ(other.Do("POST", "/v1/chat/completions", Chat(R"(,"max_tokens":2)")).status, 200);  // another adapter
  busy.Reset();
  EXPECT_TRUE(service_.WaitUntilIdleAfter(2));
  // The place is given back once the connection has noticed.
  EXPECT_TRUE(
      WaitUntil([&] { return other.Do("POST", "/v1/completions", Completion(R"(,"max_tokens":2)")).status == 200; }));
}

// Two API keys on a server, and what the engine is told of their requests.
class KeyedServerTest : public ServerTest {
 protected:
  KeyedServerTest() {
    std::ofstream(path_) << R"({"keys": [{"name": "acme", "key": "sk-acme-0123456789", "models": ["*"]},
                                          {"name": "other", "key": "sk-other-0123456789", "models": ["*"]}]})";
    options_.protection.api_key_file = path_;
    director_ = [this](const GenerationRequest& request) {
      const std::lock_guard lock(mutex_);
      tenants_.push_back(request.tenant);
      domains_.push_back(request.prefix_domain);
      deadlines_.push_back(request.deadline);
      return Say("hello");
    };
  }
  ~KeyedServerTest() override { std::filesystem::remove(path_); }

  ClientResponse Ask(const std::string& key, const std::string& headers = "", const std::string& extra = "") {
    return Connect().Do("POST", "/v1/completions", Completion(extra),
                        "Authorization: Bearer " + key + "\r\n" + headers);
  }

  const std::string path_ = testing::TempDir() + "loramux_keyed_server_" + std::to_string(getpid()) + ".json";
  std::mutex mutex_;
  std::vector<std::string> tenants_, domains_;
  std::vector<TimeNs> deadlines_;
};

// A client cannot name a tenant, unless the operator trusts the header.
TEST_F(KeyedServerTest, TheKeyIsTheTenantWhateverTheHeaderSays) {
  Start();
  const std::string header = std::string(kFairnessHeader) + ": other\r\n";
  EXPECT_EQ(Ask("sk-acme-0123456789", header).status, 200);
  EXPECT_EQ(Ask("sk-other-0123456789").status, 200);
  EXPECT_THAT(tenants_, testing::ElementsAre("acme", "other"));
  EXPECT_EQ(domains_, tenants_);
}

TEST_F(KeyedServerTest, ATrustedHeaderNamesASubTenantOfTheKey) {
  options_.trust_fairness_header = true;
  options_.protection.prefix_sharing = "all";
  Start();
  const std::string header = std::string(kFairnessHeader) + ": other\r\n";
  EXPECT_EQ(Ask("sk-acme-0123456789", header).status, 200);
  EXPECT_EQ(Ask("sk-other-0123456789", header).status, 200);
  EXPECT_EQ(Ask("sk-other-0123456789").status, 200);
  EXPECT_EQ(std::set<std::string>(tenants_.begin(), tenants_.end()).size(), 3u);
  EXPECT_EQ(tenants_.back(), "other");
  EXPECT_THAT(domains_, testing::Each(""));
}

// Keys that a router alone checks: the server keeps them apart, and believes no client.
TEST_F(KeyedServerTest, AKeylessServerKeepsTheTenantsOfItsRouterApart) {
  options_.protection.api_key_file.clear();
  options_.fleet.key = "the fleet's key 0123456789";
  Start();
  const auto ask = [&](const VouchedCaller& caller, std::string_view key) {
    const std::string value = Vouch(caller, key, "req-1", fixture_.clock.UnixSeconds());
    const std::string headers = "X-Request-Id: req-1\r\n" + std::string(kVouchedCallerHeader) + ": " + value + "\r\n";
    return Connect().Do("POST", "/v1/completions", Completion(""), headers).status;
  };
  EXPECT_EQ(ask({.key = "acme"}, options_.fleet.key), 200);
  EXPECT_EQ(ask({.key = "other"}, options_.fleet.key), 200);
  EXPECT_EQ(ask({.address = "192.0.2.7"}, options_.fleet.key), 200);
  EXPECT_EQ(ask({.key = "acme"}, "a key that a client made up"), 401);
  EXPECT_EQ(Connect().Do("POST", "/v1/completions", Completion("")).status, 200);
  EXPECT_THAT(tenants_, testing::ElementsAre("acme", "other", "", ""));
  EXPECT_EQ(domains_, tenants_);
}

TEST_F(KeyedServerTest, AHeaderSaysWhenTheFirstTokenIsWanted) {
  options_.protection.api_key_file.clear();
  Start();
  const auto ask = [&](const std::string& headers, const std::string& extra = "") {
    return Connect().Do("POST", "/v1/completions", Completion(extra), headers).status;
  };
  const TimeNs before = fixture_.clock.Now();
  EXPECT_EQ(ask("x-llm-d-slo-ttft-ms: 60000\r\n"), 200);
  EXPECT_EQ(ask("x-slo-ttft-ms: 60000.5\r\n"), 200);
  EXPECT_EQ(ask("x-llm-d-slo-ttft-ms: 60000\r\n", R"(,"deadline_ms":500000)"), 200);
  EXPECT_EQ(ask(""), 200);
  EXPECT_EQ(ask("x-llm-d-slo-ttft-ms: soon\r\n"), 400);
  ASSERT_EQ(deadlines_.size(), 4u);
  const TimeNs now = fixture_.clock.Now();
  for (int i = 0; i < 2; ++i) {
    EXPECT_GE(deadlines_[i], before + 60'000 * kNsPerMs);
    EXPECT_LE(deadlines_[i], now + 60'001 * kNsPerMs);
  }
  EXPECT_GE(deadlines_[2], before + 500'000 * kNsPerMs);
  EXPECT_EQ(deadlines_[3], 0);
}

TEST_F(KeyedServerTest, AKeyHasABoundedNumberOfSequences) {
  options_.protection.key_limits.concurrency = 4;
  options_.protection.max_sequences_per_request = 8;
  Start();
  EXPECT_EQ(Ask("sk-acme-0123456789", "", R"(,"n":4)").status, 200);
  const ClientResponse never = Ask("sk-acme-0123456789", "", R"(,"n":5)");
  EXPECT_EQ(never.status, 400);  // it could not fit later either
  EXPECT_THAT(never.body, HasSubstr("the limit of the API key `acme`"));
  EXPECT_EQ(Ask("sk-acme-0123456789", "", R"(,"n":9)").status, 400);
}

TEST_F(KeyedServerTest, AnUnknownModeOfPrefixSharingIsRefused) {
  options_.protection.prefix_sharing = "key";
  const auto server = Server::Start(options_, fixture_.Parts(service_));
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(server.error().message, HasSubstr("expected tenant or all, found 'key'"));
}

}  // namespace
}  // namespace loramux::server_test
