// The dialects over HTTP, with a scripted engine behind the server.
#include "server/api/api_routes.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "http/raw_client_for_test.h"
#include "server/server.h"
#include "server/server_fixture.h"

namespace loramux::dialect_routes_test {
namespace {

using testing::HasSubstr;

constexpr const char* kMessages = R"({"model":"sql","max_tokens":50,"messages":[{"role":"user","content":"hi"}])";

class DialectRoutesTest : public testing::Test {
 protected:
  DialectRoutesTest() : service_([this](const GenerationRequest&) { return script_; }) {
    options_.http.port = 0;
    options_.model_path = "models/base";
    options_.completion.max_model_len = kTestMaxTokens;
  }
  void Start() {
    auto server = Server::Start(options_, fixture_.Parts(service_));
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = std::move(server).value();
  }
  ClientResponse Post(const std::string& path, const std::string& body) {
    return RawHttpClient(server_->port()).Do("POST", path, body);
  }

  ServerOptions options_;
  ServingFixture fixture_;
  Script script_ = Say("hello");
  ScriptedService service_;
  std::unique_ptr<Server> server_;
};

TEST_F(DialectRoutesTest, Messages) {
  Start();
  const Json json = Post("/v1/messages", std::string(kMessages) + "}").json();
  EXPECT_EQ(json["content"][0]["text"], "hello");
  EXPECT_EQ(json["usage"]["input_tokens"], 10);  // half of the 20; the cache has the others
  EXPECT_EQ(json["usage"]["cache_read_input_tokens"], 10);
  const ClientResponse stream = Post("/v1/messages", std::string(kMessages) + R"(,"stream":true})");
  EXPECT_THAT(stream.Header("Content-Type"), HasSubstr("text/event-stream"));
  EXPECT_THAT(stream.body, HasSubstr("event: message_stop"));
  EXPECT_THAT(stream.body, testing::Not(HasSubstr("[DONE]")));
  EXPECT_EQ(Post("/v1/messages/count_tokens", std::string(kMessages) + "}").json()["input_tokens"], 20);
}

TEST_F(DialectRoutesTest, TokensToTokens) {
  Start();
  const std::string body = R"({"model":"sql","token_ids":[104,105],"sampling_params":{"max_tokens":20,"logprobs":0})";
  const Json answer = Post("/inference/v1/generate", body + "}").json();
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(answer["model"], "sql");
  EXPECT_EQ(answer["usage"]["completion_tokens"], choice["token_ids"].size());
  EXPECT_EQ(choice["logprobs"]["content"].size(), choice["token_ids"].size());
  EXPECT_EQ(choice["logprobs"]["content"][0]["token_id"], 'h');
  EXPECT_FALSE(choice.contains("text"));
  const ClientResponse stream = Post("/inference/v1/generate", body + R"(,"stream":true})");
  EXPECT_THAT(stream.body, HasSubstr(R"("token_ids":[)"));
  EXPECT_TRUE(stream.body.ends_with("data: [DONE]\n\n"));
  const ClientResponse refused = Post("/inference/v1/generate", body + R"(,"temperature":1})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "sampling_params");
}

TEST_F(DialectRoutesTest, Responses) {
  Start();
  const std::string body = R"({"model":"sql","input":"hi")";
  EXPECT_EQ(Post("/v1/responses", body + "}").json()["output"][0]["content"][0]["text"], "hello");
  EXPECT_THAT(Post("/v1/responses", body + R"(,"stream":true})").body, HasSubstr("event: response.completed"));
}

TEST_F(DialectRoutesTest, AHeaderNamesTheToolsThatAreLeftOut) {
  Start();
  const std::string body =
      R"({"model":"sql","input":"hi","tools":[{"type":"web_search"},{"type":"custom","name":"p"}])";
  for (const char* stream : {"}", R"(,"stream":true})"}) {
    const ClientResponse response = Post("/v1/responses", body + stream);
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.Header("X-Loramux-Left-Out-Tools"), "web_search, custom;name=p");
  }
}

// Log-probabilities belong to the text, whole or in a stream; calls have none.
TEST_F(DialectRoutesTest, LogprobsOfResponsesBesideCalls) {
  options_.tool_call_parsers = {"hermes"};
  Start();
  const std::string body =
      R"({"model":"sql","input":"hi","include":["message.output_text.logprobs"],
          "tools":[{"type":"function","name":"f","parameters":{}}])";
  for (const auto& [text, count] :
       {std::pair("to A <b", 7), std::pair("Hi<tool_call>{\"name\":\"f\"}</tool_call>", 2)}) {
    script_ = Say(text);
    const Json whole = Post("/v1/responses", body + "}").json()["output"];
    EXPECT_EQ(whole[0]["content"][0]["logprobs"].size(), count) << text;
    const std::string stream = Post("/v1/responses", body + R"(,"stream":true})").body;
    const std::size_t last = stream.rfind("data: ") + 6;
    Json streamed = Json::parse(stream.substr(last, stream.find('\n', last) - last))["response"]["output"];
    ASSERT_EQ(streamed.size(), whole.size());
    EXPECT_EQ(streamed[0]["content"], whole[0]["content"]);
    std::size_t deltas = 0;
    for (std::size_t at = stream.find("response.output_text.delta\n"); at != std::string::npos;
         at = stream.find("response.output_text.delta\n", at + 1)) {
      const std::size_t data = stream.find("data: ", at) + 6;
      deltas += Json::parse(stream.substr(data, stream.find('\n', data) - data))["logprobs"].size();
    }
    EXPECT_EQ(deltas, count);
  }
}

TEST_F(DialectRoutesTest, TextGenerationInference) {
  Start();
  const std::string body = R"({"inputs":"hi","parameters":{"adapter_id":"sql","details":true}})";
  const Json json = Post("/generate", body).json();
  EXPECT_EQ(json["generated_text"], "hello");
  EXPECT_EQ(json["details"]["generated_tokens"], 6);
  EXPECT_EQ(json["details"]["tokens"][0]["text"], "h");
  EXPECT_EQ(json["details"]["tokens"][5]["id"], kEosToken);
  EXPECT_EQ(Post("/", body).json()[0]["generated_text"], "hello");
  EXPECT_THAT(Post("/generate_stream", body).body, HasSubstr(R"("generated_text":"hello")"));
  EXPECT_EQ(service_.submitted().front().max_tokens, -1);  // as many as fit
  EXPECT_EQ(RawHttpClient(server_->port()).Do("GET", "/info", "").json()["max_total_tokens"], kTestMaxTokens);
}

// Errors of any origin have the form of the route.
TEST_F(DialectRoutesTest, ErrorsHaveTheFormOfTheDialect) {
  Start();
  const std::string long_body = R"({"x":")" + std::string(std::size_t{4} << 20, 'x') + R"("})";
  const ClientResponse large = Post("/v1/messages", long_body);
  EXPECT_EQ(large.status, 413);
  EXPECT_EQ(large.json()["error"]["type"], "request_too_large");
  EXPECT_EQ(Post("/generate", long_body).json()["error_type"], "validation");
  const ClientResponse unknown =
      Post("/v1/messages", R"({"model":"x","max_tokens":1,"messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.json()["error"]["type"], "not_found_error");
  EXPECT_EQ(Post("/generate", R"({"inputs":"x","parameters":{"adapter_id":"x"}})").status, 400);
  RawHttpClient client(server_->port());
  const ClientResponse method = client.Do("GET", "/v1/messages", "");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.json()["type"], "error");
  EXPECT_EQ(Post("/v1/messages/batches", "{}").json()["error"]["type"], "not_found_error");
  EXPECT_EQ(client.Do("GET", "/generate", "").json()["error_type"], "validation");
  EXPECT_EQ(client.Do("GET", "/v1/messagesx", "").json()["error"]["code"], 404);
  EXPECT_EQ(Post("/v1/chat/completions/x", "{}").json()["error"]["code"], 404);
  const Json tokens = Post("/v1/messages/count_tokens", R"({"model":"sql","messages":[]})").json();
  EXPECT_EQ(tokens["type"], "error");
}

// A body that no route could take.
TEST_F(DialectRoutesTest, ErrorsHaveTheFormOfTheDialectEvenIfTheServersLimitIsReached) {
  options_.http.max_body_bytes = 1000;
  Start();
  const std::string long_body(2000, 'x');
  const ClientResponse large = Post("/v1/messages", long_body);
  EXPECT_EQ(large.status, 413);
  EXPECT_EQ(large.json()["error"]["type"], "request_too_large");
  EXPECT_EQ(Post("/generate", long_body).json()["error_type"], "validation");
}

// A prompt that the model's length has no room for: the error speaks of the dialect's field.
TEST_F(DialectRoutesTest, ErrorsOfThePromptNameTheDialectsField) {
  Start();
  const std::string text(kTestMaxTokens + 10, 'x');
  const Json responses = Post("/v1/responses", R"({"model":"sql","input":")" + text + R"("})").json();
  EXPECT_EQ(responses["error"]["param"], "input");
}

TEST_F(DialectRoutesTest, FailuresAmidAStream) {
  script_ = Say("ab");
  script_.finish = FinishReason::kError;
  Start();
  // The engine fails after the stream has begun.
  const auto failing = [&](const std::string& path, const std::string& body) {
    RawHttpClient client(server_->port());
    service_.HoldSteps();
    client.Send(RawHttpClient::Format("POST", path, body));
    service_.AllowSteps(1);
    EXPECT_TRUE(client.Await("data:"));
    service_.ReleaseSteps();
    return client.Read().body;
  };
  EXPECT_THAT(failing("/v1/messages", std::string(kMessages) + R"(,"stream":true})"),
              HasSubstr("event: error\ndata: {\"type\":\"error\""));
  EXPECT_THAT(failing("/v1/responses", R"({"model":"sql","input":"hi","stream":true})"),
              HasSubstr("event: response.failed"));
  EXPECT_THAT(failing("/generate_stream", R"({"inputs":"x"})"), HasSubstr(R"("error_type":"generation")"));
}

TEST_F(DialectRoutesTest, KeysOfBothKinds) {
  const std::filesystem::path keys = std::filesystem::path(testing::TempDir()) / "dialect_keys.json";
  std::ofstream(keys) << R"({"keys":[{"name":"a","key":"key-number-one-1","models":["*"]}]})";
  options_.protection.api_key_file = keys.string();
  Start();
  const auto ask = [&](std::string_view headers) {
    return RawHttpClient(server_->port()).Do("POST", "/v1/messages", std::string(kMessages) + "}", headers);
  };
  EXPECT_EQ(ask("x-api-key: key-number-one-1\r\n").status, 200);
  EXPECT_EQ(ask("Authorization: Bearer key-number-one-1\r\n").status, 200);
  EXPECT_EQ(ask("x-api-key: key-number-one-2\r\n").status, 401);
  EXPECT_EQ(ask("").json()["error"]["type"], "authentication_error");
  std::filesystem::remove(keys);
}

TEST_F(DialectRoutesTest, EveryPathIsFound) {
  for (const ApiPath& path : ApiPaths()) EXPECT_EQ(FindApiPath(path.path), &path);
  EXPECT_EQ(FindApiPath("/nowhere"), nullptr);
}

}  // namespace
}  // namespace loramux::dialect_routes_test
