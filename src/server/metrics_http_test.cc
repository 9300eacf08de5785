// Metrics, request ids and traces over HTTP, with a scripted engine behind the server.
#include <chrono>

#include <gmock/gmock.h>

#include "http/raw_client_for_test.h"
#include "server/metrics/metrics_page_for_test.h"
#include "server/metrics/metrics_service.h"
#include "server/server.h"
#include "server/server_fixture.h"

namespace loramux::metrics_http_test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kChat = R"({"model":"sql","messages":[{"role":"user","content":"hi"}]})";
std::string Completion(const std::string& extra = "") { return R"({"model":"base","prompt":"p")" + extra + "}"; }

class MetricsHttp : public testing::Test {
 protected:
  MetricsHttp() : service_([this](const GenerationRequest& request) { return director_(request); }) {
    options_.http.port = 0;
    options_.http.linger_timeout = 200ms;
    options_.model_path = "models/base";
    options_.completion.max_model_len = kTestMaxTokens;
  }
  void Start() {
    ServerParts parts = fixture_.Parts(service_);
    parts.engine_snapshot = [](auto) { return std::make_shared<EngineSnapshot>(); };
    auto server = Server::Start(options_, parts);
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = std::move(server).value();
  }
  ClientResponse Do(const std::string& path, const std::string& body = "", const std::string& headers = "") {
    return RawHttpClient(server_->port()).Do(body.empty() ? "GET" : "POST", path, body, headers);
  }
  MetricsPage Page() { return MetricsPage(Do("/metrics").body); }
  // Polls until `name` has this value, and returns the page. Necessary because the connection's thread updates some
  // counters after the response.
  MetricsPage PageWith(const std::string& name, const std::string& label, double value) {
    MetricsPage page = Page();
    WaitUntil([&] {
      if (page.Sum(name, label) == value) return true;
      page = Page();
      return false;
    });
    return page;
  }

  ServerOptions options_;
  ServingFixture fixture_;
  ScriptedService::Director director_ = [](const GenerationRequest&) { return Say("hello"); };
  ScriptedService service_;
  std::unique_ptr<Server> server_;
};

TEST_F(MetricsHttp, PageHasItsType) {
  Start();
  const ClientResponse response = Do("/metrics");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.Header("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(MetricsPage(response.body).duplicates, IsEmpty());
}

TEST_F(MetricsHttp, CountersMoveAsTheTruthDoes) {
  Start();
  EXPECT_EQ(Do("/v1/chat/completions", kChat).status, 200);                             // 20 + 5 tokens
  EXPECT_EQ(Do("/v1/completions", Completion(R"(,"n":2,"stream":true)")).status, 200);  // twice 1 + 5
  EXPECT_EQ(Do("/v1/completions", Completion(R"(,"stop":"l")")).status, 200);           // three tokens: "l" stops it
  director_ = [](const GenerationRequest&) {
    Script script = Say("x");
    script.finish = FinishReason::kError;
    return script;
  };
  EXPECT_EQ(Do("/v1/completions", Completion()).status, 500);
  EXPECT_EQ(Do("/v1/completions", R"({"model":"nobody","prompt":"p"})").status, 404);
  const MetricsPage page = PageWith("vllm:request_success_total", "", 5);
  EXPECT_EQ(page.Sum("vllm:request_success_total", "\"stop\""), 4);
  EXPECT_EQ(page.Sum("vllm:request_success_total", "\"error\""), 1);
  EXPECT_EQ(page.Sum("vllm:generation_tokens_total"), 5 + 10 + 3 + 1);
  const double prompts = page.Sum("vllm:prompt_tokens_total");
  EXPECT_EQ(prompts, page.Sum("loramux:adapter_prompt_tokens_total"));
  EXPECT_EQ(page.Sum("loramux:adapter_prompt_tokens_total", "\"sql\""), 20);
  EXPECT_EQ(page.Sum("vllm:prefix_cache_queries_total"), prompts);
  const int base_prompt = static_cast<int>(prompts - 20) / 4;
  // the scripted engine reports half of each prompt as cached
  EXPECT_EQ(page.Sum("vllm:prefix_cache_hits_total"), 10 + 4 * (base_prompt / 2));
  EXPECT_EQ(page.Sum("vllm:request_generation_tokens_sum"), 18);
  EXPECT_EQ(page.Sum("vllm:time_to_first_token_seconds_count"), 5);
  EXPECT_EQ(page.Sum("vllm:e2e_request_latency_seconds_count"), 4);
  EXPECT_EQ(page.Sum("loramux:adapter_requests_total", "\"sql\""), 1);
  EXPECT_EQ(page.Sum("loramux:adapter_requests_total", "\"base\""), 4);
  EXPECT_EQ(page.Sum("loramux:http_responses_total", "\"404\""), 1);
  EXPECT_EQ(page.Sum("loramux:http_responses_total", "\"500\""), 1);
}

TEST_F(MetricsHttp, ClientsThatLeaveAreAborts) {
  director_ = [](const GenerationRequest&) {
    Script script = Say("x");
    script.repeat = script.endless = true;
    return script;
  };
  service_.set_step_time(1ms);
  Start();
  RawHttpClient client(server_->port());
  client.Send(RawHttpClient::Format("POST", "/v1/completions", Completion(R"(,"stream":true,"max_tokens":4000)")));
  client.ReadUntil("data: ");
  client.Close();
  const MetricsPage page = PageWith("vllm:request_success_total", "\"abort\"", 1);
  EXPECT_EQ(page.Sum("vllm:request_success_total", "\"abort\""), 1);
  EXPECT_EQ(page.Sum("vllm:request_success_total"), 1);
  EXPECT_GE(page.Sum("vllm:generation_tokens_total"), 1);
}

// ---- Ids and traces ----

TEST_F(MetricsHttp, EveryResponseHasTheRequestsId) {
  Start();
  const std::string id = "X-Request-Id: client-7\r\n";
  for (const ClientResponse& response :
       {Do("/v1/chat/completions", kChat, id), Do("/v1/completions", Completion(R"(,"stream":true)"), id),
        Do("/v1/completions", "{", id), Do("/nowhere", "", id), Do("/health", "", id), Do("/metrics", "", id),
        RawHttpClient(server_->port()).Do("DELETE", "/health", "", id)}) {
    EXPECT_EQ(response.Header("X-Request-Id"), "client-7") << response.status << response.body;
  }
}

TEST_F(MetricsHttp, RequestsWithoutASaneIdGetTheirOwn) {
  options_.http.max_body_bytes = 1000;
  options_.http.max_header_bytes = 2000;
  Start();
  const std::string huge = "X-Huge: " + std::string(3000, 'x') + "\r\n";
  std::set<std::string> ids;
  const ClientResponse responses[] = {Do("/health"), Do("/health", "", "X-Request-Id: a b\r\n"),
                                      Do("/v1/completions", std::string(2000, ' ')), Do("/health", "", huge)};
  for (const ClientResponse& response : responses) ids.insert(response.Header("X-Request-Id"));
  RawHttpClient client(server_->port());
  client.Send("no http at all\r\n\r\n");
  const ClientResponse malformed = client.Read();
  EXPECT_EQ(malformed.status, 400);
  ids.insert(malformed.Header("X-Request-Id"));
  EXPECT_EQ(responses[2].status, 413);
  EXPECT_EQ(responses[3].status, 431);
  EXPECT_EQ(ids.size(), 5u);
  for (const std::string& id : ids) EXPECT_EQ(id.size(), 32u);
}

TEST_F(MetricsHttp, TracesAreContinued) {
  Start();
  const std::string trace_id = "0af7651916cd43dd8448eb211c80319c";
  const std::string parent = "traceparent: 00-" + trace_id + "-b7ad6b7169203331-01\r\n";
  for (const char* stream : {"", R"(,"stream":true)"}) {
    const ClientResponse response = Do("/v1/completions", Completion(stream), parent + "tracestate: v=1\r\n");
    EXPECT_THAT(response.Header("traceparent"), HasSubstr("00-" + trace_id + "-"));
    EXPECT_EQ(response.Header("traceparent").find("b7ad6b7169203331"), std::string::npos);
    EXPECT_EQ(response.Header("tracestate"), "v=1");
  }
  EXPECT_EQ(Do("/health", "", "traceparent: 00-x\r\n").Header("traceparent"), "");
  EXPECT_EQ(Do("/health", "", parent + parent).Header("traceparent"), "");  // ambiguous
  EXPECT_EQ(Do("/health").Header("traceparent"), "");
}

}  // namespace
}  // namespace loramux::metrics_http_test
