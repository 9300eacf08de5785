// The router between real sockets: clients byte by byte on one side, servers that follow scripts on the other.
#include "router/router.h"

#include <algorithm>
#include <deque>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "auth/vouched_caller.h"
#include "base/wait_until_for_test.h"
#include "cluster/default_model.h"
#include "http/raw_client_for_test.h"
#include "router/scripted_server_for_test.h"

namespace loramux::router_test {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

constexpr const char* kChat = "/v1/chat/completions";
const std::string kBody = R"({"model":"base","messages":[{"role":"user","content":"hi"}]})";

class RouterTest : public testing::Test {
 protected:
  RouterTest() {
    options_.http.port = 0;
    options_.http.linger_timeout = 50ms;
    options_.http.drain_timeout = 100ms;
    options_.dispatch.policy = "random";
    options_.dispatch.model = DefaultPerformanceModel();
    options_.dispatch.retry_budget = 3;  // each request may be refused by two servers
    options_.access.probe_interval = 20ms;
  }

  void Start(std::vector<ServerAddress> servers) {
    const std::size_t count = servers.size();
    router_ = Must(Router::Start(options_, clock_));
    router_->SetServers(std::move(servers));
    ASSERT_TRUE(WaitUntil([&] { return Health()["servers"].size() == count; }));
  }
  void StartWith(const std::vector<ScriptedServer*>& servers) {
    std::vector<ServerAddress> addresses;
    for (const ScriptedServer* server : servers) addresses.push_back(server->address());
    Start(std::move(addresses));
    ASSERT_TRUE(WaitUntil([&] { return Ready() == servers.size(); }));
  }
  RawHttpClient Client() { return RawHttpClient(router_->port()); }
  ClientResponse Ask(const std::string& body = kBody, std::string_view headers = {}) {
    return Client().Do("POST", kChat, body, headers);
  }
  Json Health() { return Client().Do("GET", "/health").json(); }
  std::size_t Ready() {
    const Json health = Health();
    return static_cast<std::size_t>(std::count_if(health["servers"].begin(), health["servers"].end(),
                                                  [](const Json& server) { return server["state"] == "ready"; }));
  }
  // The value of a series of /metrics.
  double Metric(const std::string& series) {
    const std::string page = Client().Do("GET", "/metrics").body;
    const auto at = page.find("\n" + series + " ");
    return at == std::string::npos ? -1 : std::stod(page.substr(at + series.size() + 2));
  }
  // The address of a port that refuses connections.
  static ServerAddress DeadAddress() {
    ScriptedServer server(Replies(200, "{}"));
    const ServerAddress address = server.address();
    server.Stop();
    return address;
  }

  const OsClock clock_;
  RouterOptions options_;
  std::unique_ptr<Router> router_;
};

TEST_F(RouterTest, PassesRequestsAndAnswersOn) {
  ScriptedServer server([](HttpExchange& exchange) -> asio::awaitable<void> {
    HttpReply reply{
        201, exchange.request().body + "|" + exchange.request().target, "application/json", {{"X-Own", "7"}}};
    co_await exchange.Send(std::move(reply));
  });
  StartWith({&server});
  const ClientResponse response =
      Client().Do("POST", "/v1/completions?a=b", R"({"prompt":"x"})",
                  "X-Request-Id: mine\r\nAuthorization: Bearer k\r\nX-Forwarded-For: 1.2.3.4\r\n"
                  "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
                  "Connection: X-Hop\r\nX-Hop: 1\r\n");
  EXPECT_EQ(response.status, 201);
  EXPECT_EQ(response.body, R"({"prompt":"x"}|/v1/completions?a=b)");
  EXPECT_EQ(response.Header("X-Own"), "7");
  EXPECT_EQ(response.Header("X-Request-Id"), "mine");
  EXPECT_EQ(response.Header("x-loramux-server"), server.address().name);
  EXPECT_EQ(server.ids(), std::vector<std::string>{"mine"});
  EXPECT_EQ(server.last_header("Authorization"), "Bearer k");
  EXPECT_EQ(server.last_header("X-Forwarded-For"), "1.2.3.4, 127.0.0.1");
  EXPECT_EQ(server.last_header("x-gateway-inference-fairness-id"), "address 127.0.0.1");
  EXPECT_EQ(server.last_header("X-Hop"), "");
  EXPECT_TRUE(server.last_header("traceparent").starts_with("00-0af7651916cd43dd8448eb211c80319c-"));
  EXPECT_EQ(server.last_header("traceparent").find("b7ad6b7169203331"), std::string::npos);
}

TEST_F(RouterTest, KeepsConnectionsToServers) {
  ScriptedServer server(Replies(200, "{}"));
  StartWith({&server});
  RawHttpClient client = Client();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.Do("POST", kChat, kBody).status, 200);
  EXPECT_LE(server.connections(), 3);  // connections of requests, and that of the link
}

TEST_F(RouterTest, SendsToAnotherServerWhatDidNotBegin) {
  ScriptedServer refusing(Replies(503, R"({"error":{"message":"draining"}})", {{"x-loramux-not-started", "1"}}));
  ScriptedServer serving(Replies(200, R"({"ok":true})"));
  options_.dispatch.health.failures_to_eject = 1000;
  Start({DeadAddress(), refusing.address(), serving.address()});
  for (int i = 0; i < 30; ++i) {
    const ClientResponse response = Ask();
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.Header("x-loramux-server"), serving.address().name);
  }
  EXPECT_EQ(serving.ids().size(), 30u);
  EXPECT_GT(Metric("loramux:router_retries_total"), 0);
}

TEST_F(RouterTest, NeverAsksTheSameServerTwiceAndPassesTheLastRefusalOn) {
  ScriptedServer refusing(Replies(503, R"({"error":{"message":"draining"}})", {{"x-loramux-not-started", "1"}}));
  StartWith({&refusing});
  const ClientResponse response = Ask();
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.body, R"({"error":{"message":"draining"}})");
  EXPECT_EQ(response.Header("x-loramux-not-started"), "1");
  EXPECT_EQ(refusing.ids().size(), 1u);
}

TEST_F(RouterTest, TheBudgetEndsRetries) {
  options_.dispatch.retry_budget = 0;
  options_.dispatch.health.failures_to_eject = 1000;
  ScriptedServer refusing(Replies(503, "{}", {{"x-loramux-not-started", "1"}}));
  ScriptedServer refusing_too(Replies(503, "{}", {{"x-loramux-not-started", "1"}}));
  StartWith({&refusing, &refusing_too});
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Ask().status, 503);
  EXPECT_LT(refusing.ids().size() + refusing_too.ids().size(), 130u);  // the budget has a small floor
}

TEST_F(RouterTest, NeverSendsAgainWhatMayHaveBegun) {
  std::atomic<int> executed{0};
  const auto count = [&](ScriptedServer::Script script) {
    return [&, script](HttpExchange& exchange) -> asio::awaitable<void> {
      ++executed;
      co_await script(exchange);
    };
  };
  ScriptedServer failing(count(Replies(500, R"({"error":{"message":"bug"}})")));
  ScriptedServer dying(count([](HttpExchange& exchange) -> asio::awaitable<void> {
    exchange.Abort();
    co_return;
  }));
  options_.dispatch.health.failures_to_eject = 1000;
  StartWith({&failing, &dying});
  int broken = 0;
  for (int i = 0; i < 40; ++i) {
    const ClientResponse response = Ask();
    if (response.status == 502) {
      ++broken;
      EXPECT_NE(response.body.find("broke off"), std::string::npos);
    } else {
      EXPECT_EQ(response.status, 500);
      EXPECT_EQ(response.json()["error"]["message"], "bug");
    }
  }
  EXPECT_EQ(executed, 40);
  EXPECT_GT(broken, 0);
  EXPECT_EQ(Metric("loramux:router_retries_total"), 0);
}

TEST_F(RouterTest, AServerThatErrsAgainAndAgainGetsNothingForAWhile) {
  ScriptedServer failing(Replies(500, R"({"error":{"message":"bug"}})")), good(Replies(200, "{}"));
  ScriptedServer unsupported(Replies(501, "{}"));
  options_.dispatch.most_ejected = 1;
  StartWith({&failing, &good, &unsupported});
  for (int i = 0; i < 120; ++i) Ask();
  EXPECT_EQ(failing.ids().size(), 5u);
  EXPECT_GT(unsupported.ids().size(), 20u);
  EXPECT_EQ(Metric("loramux:router_requests_total{server=\"" + failing.address().name + "\",outcome=\"server_error\"}"),
            5);
}

TEST_F(RouterTest, AServerThatDiesInTheMiddleEndsAStreamWithAnError) {
  ScriptedServer server([](HttpExchange& exchange) -> asio::awaitable<void> {
    co_await exchange.StartStream("text/event-stream");
    co_await exchange.Write("data: {\"n\":1}\n\ndata: {\"n\":2}\n\ndata: {\"half");
    co_await SleepForTest(20ms);
    exchange.Abort();
  });
  StartWith({&server});
  const ClientResponse response = Ask();
  EXPECT_TRUE(response.complete);
  const std::vector<std::string> events = response.events();
  ASSERT_EQ(events.size(), 4u) << response.body;
  EXPECT_EQ(events[1], "{\"n\":2}");
  EXPECT_NE(Json::parse(events[2])["error"]["message"].get<std::string>().find("broke off"), std::string::npos);
  EXPECT_EQ(events[3], "[DONE]");
  EXPECT_EQ(server.ids().size(), 1u);
}

TEST_F(RouterTest, AServerThatDiesInTheMiddleOfAnAnswerIsAnError) {
  ScriptedServer server([](HttpExchange& exchange) -> asio::awaitable<void> {
    HttpStreamHead head{.status = 200, .headers = {{"Content-Type", "application/json"}}, .content_length = 1000};
    co_await exchange.StartStream(std::move(head));
    co_await exchange.Write("{\"half");
    exchange.Abort();
  });
  StartWith({&server});
  const ClientResponse response = Ask();
  EXPECT_EQ(response.status, 502);
  EXPECT_NE(response.body.find("broke off"), std::string::npos);
}

TEST_F(RouterTest, AServerThatSaysNothingIsGivenUp) {
  options_.answer_timeout = 100ms;
  ScriptedServer server([](HttpExchange&) -> asio::awaitable<void> { co_await SleepForTest(2s); });
  StartWith({&server});
  EXPECT_EQ(Ask().status, 504);
}

TEST_F(RouterTest, AClientThatLeavesCancelsAtOnce) {
  std::atomic<bool> begun{false}, gone{false};
  ScriptedServer server([&](HttpExchange& exchange) -> asio::awaitable<void> {
    exchange.OnDisconnect([&] { gone = true; });
    begun = true;
    while (!gone) co_await SleepForTest(1ms);
  });
  StartWith({&server});
  RawHttpClient client = Client();
  client.Send(RawHttpClient::Format("POST", kChat, kBody));
  ASSERT_TRUE(WaitUntil([&] { return begun.load(); }));
  client.Close();
  EXPECT_TRUE(WaitUntil([&] { return gone.load(); }));
  const std::string series =
      "loramux:router_requests_total{server=\"" + server.address().name + "\",outcome=\"cancelled\"}";
  EXPECT_TRUE(WaitUntil([&] { return Metric(series) == 1; }));
  EXPECT_EQ(Metric("loramux:router_in_flight"), 0);
}

// What a client does not read stays in the sockets; the server stops, and others are served.
TEST_F(RouterTest, ASlowReaderSlowsItsServerDownAndHarmsNoOther) {
  std::atomic<std::int64_t> written{0};
  ScriptedServer server([&](HttpExchange& exchange) -> asio::awaitable<void> {
    if (exchange.request().body.find("flood") == std::string::npos) co_return co_await Replies(200, "{}")(exchange);
    const std::string event = "data: " + std::string(10'000, 'x') + "\n\n";
    bool alive = co_await exchange.StartStream("text/event-stream");
    while (alive && written < 200'000'000) {
      alive = co_await exchange.Write(event);
      written += static_cast<std::int64_t>(event.size());
    }
  });
  StartWith({&server});
  RawHttpClient slow(router_->port(), 4096);
  slow.Send(RawHttpClient::Format("POST", kChat, R"({"prompt":"flood"})"));
  ASSERT_TRUE(slow.Await("data: "));
  std::int64_t before = -1;
  ASSERT_TRUE(WaitUntil([&] {  // until the server is stuck
    const std::int64_t now = written;
    std::this_thread::sleep_for(20ms);
    return std::exchange(before, now) == now;
  }));
  EXPECT_LT(written, 32'000'000);  // the buffers of the sockets of the system
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Ask().status, 200);
  EXPECT_EQ(Metric("loramux:router_streams"), 1);
}

TEST_F(RouterTest, EventsArriveWholeWhateverTheirPieces) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "data: {\"n\":" + std::to_string(i) + "}\n\n";
  text += "data: [DONE]\n\n";
  ScriptedServer server([&](HttpExchange& exchange) -> asio::awaitable<void> {
    co_await exchange.StartStream("text/event-stream; charset=utf-8");
    for (std::size_t at = 0, step = 1; at < text.size(); at += step, step = 1 + step % 17) {
      co_await exchange.Write(text.substr(at, step));
      if (at % 5 == 0) co_await SleepForTest(1ms);
    }
    co_await exchange.EndStream();
  });
  StartWith({&server});
  RawHttpClient client = Client();
  for (int i = 0; i < 2; ++i) {  // the connections stay usable
    const ClientResponse response = client.Do("POST", kChat, kBody);
    EXPECT_EQ(response.body, text);
    EXPECT_EQ(response.Header("Content-Type"), "text/event-stream; charset=utf-8");
  }
}

TEST_F(RouterTest, LongAnswersPassWithTheirLength) {
  const std::string text(5'000'000, 'y');
  ScriptedServer server(Replies(200, text));
  StartWith({&server});
  const ClientResponse response = Ask();
  EXPECT_EQ(response.body.size(), text.size());
  EXPECT_EQ(response.Header("Content-Length"), std::to_string(text.size()));
}

TEST_F(RouterTest, RefusesWhatIsTooLong) {
  ScriptedServer server(Replies(200, "{}"));
  options_.http.max_body_bytes = 100'000;
  StartWith({&server});
  EXPECT_EQ(Ask(R"({"prompt":")" + std::string(200'000, 'x') + "\"}").status, 413);
  EXPECT_EQ(Ask(R"({"prompt":")" + std::string(99'000, 'x') + "\"}").status, 200);
  EXPECT_EQ(server.ids().size(), 1u);
  EXPECT_EQ(Client().Do("GET", "/internal/snapshot").status, 404);
}

TEST_F(RouterTest, AnAdapterOfOneServerIsAskedForThere) {
  ScriptedServer one(Replies(200, "{}"), {}, {"base", "sql"}), two(Replies(200, "{}"), {}, {"base", "law"});
  ScriptedServer three(Replies(200, "{}"), {}, {"base"});
  StartWith({&one, &two, &three});
  ASSERT_TRUE(WaitUntil([&] { return one.listed == 1 && two.listed == 1 && three.listed == 1; }));
  std::this_thread::sleep_for(50ms);  // until the router has read them
  for (int i = 0; i < 12; ++i) EXPECT_EQ(Ask(R"({"model":"law","prompt":"x"})").status, 200);
  EXPECT_EQ(two.ids().size(), 12u);
  for (int i = 0; i < 30; ++i) Ask();
  EXPECT_GT(one.ids().size(), 0u);
  EXPECT_GT(three.ids().size(), 0u);
}

TEST_F(RouterTest, MergesTheListsOfModels) {
  ScriptedServer one(Replies(200, "{}"), {}, {"base", "sql"}), two(Replies(200, "{}"), {}, {"base", "law"});
  StartWith({&one, &two});
  ASSERT_TRUE(WaitUntil([&] { return one.listed == 1; }));  // the router has asked for the base model
  const Json list = Client().Do("GET", "/v1/models").json();
  ASSERT_EQ(list["data"].size(), 3u) << list.dump();
  EXPECT_EQ(list["data"][0]["id"], "base");
  EXPECT_EQ(list["data"][1]["id"], "law");
  EXPECT_EQ(list["data"][2]["id"], "sql");
  EXPECT_EQ(Client().Do("GET", "/v1/models/sql").json()["id"], "sql");
  EXPECT_EQ(Client().Do("GET", "/v1/models/none").status, 404);
  EXPECT_EQ(one.listed, 2);  // the list was kept
  EXPECT_EQ(Client().Do("GET", "/v1/models", "", "Authorization: Bearer other\r\n").status, 200);
  EXPECT_EQ(one.listed, 3);  // but not for another key
}

TEST_F(RouterTest, ManyWhoWantTheListOfModelsAskTheServersOnce) {
  ScriptedServer server(Replies(200, "{}"), {}, {"base", "sql"});
  StartWith({&server});
  ASSERT_TRUE(WaitUntil([&] { return server.listed == 1; }));
  server.list_delay_ms = 200;
  std::deque<RawHttpClient> clients;
  for (int i = 0; i < 20; ++i) clients.emplace_back(router_->port());
  for (RawHttpClient& client : clients) client.Send(RawHttpClient::Format("GET", "/v1/models", ""));
  for (RawHttpClient& client : clients) EXPECT_EQ(client.Read().json()["data"].size(), 2u);
  EXPECT_EQ(server.listed, 2);
}

TEST_F(RouterTest, LongListsOfModelsAreMergedAndBounded) {
  std::vector<std::string> many = {"base"}, huge = {"base"};
  for (int i = 0; i < 5000; ++i) many.push_back("adapter-" + std::to_string(i));
  for (int i = 0; i < 20; ++i) huge.push_back(std::to_string(i) + std::string(1'000'000, 'h'));
  ScriptedServer long_list(Replies(200, "{}"), {}, many), huge_list(Replies(200, "{}"), {}, huge);
  StartWith({&long_list, &huge_list});
  EXPECT_EQ(Client().Do("GET", "/v1/models").json()["data"].size(), 5001u);  // that of the other server is too long
  EXPECT_EQ(Client().Do("GET", "/v1/models/adapter-4999").json()["id"], "adapter-4999");
}

TEST_F(RouterTest, LoadsAdaptersOnAllServersOrOnOne) {
  ScriptedServer good(Replies(200, "Success")), bad(Replies(400, R"({"error":"no such file"})"));
  options_.admin_key = "";  // the servers check
  StartWith({&good, &bad});
  const std::string body = R"({"lora_name":"a","lora_path":"/a"})";
  const ClientResponse both = Client().Do("POST", "/v1/load_lora_adapter", body, "Authorization: Bearer admin\r\n");
  EXPECT_EQ(both.status, 400);
  EXPECT_FALSE(both.json()["ok"].get<bool>());
  EXPECT_EQ(both.json()["servers"].size(), 2u);
  EXPECT_EQ(good.last_header("Authorization"), "Bearer admin");
  EXPECT_EQ(bad.ids().size(), 1u);
  const ClientResponse one = Client().Do("POST", "/v1/load_lora_adapter?server=" + good.address().name, body);
  EXPECT_EQ(one.status, 200);
  EXPECT_TRUE(one.json()["ok"].get<bool>());
  EXPECT_EQ(bad.ids().size(), 1u);
  EXPECT_EQ(Client().Do("POST", "/v1/load_lora_adapter?server=none:1", body).status, 404);
}

TEST_F(RouterTest, AShutdownEndsLoadsThatTakeLong) {
  std::atomic<bool> begun{false}, gone{false};
  ScriptedServer server([&](HttpExchange& exchange) -> asio::awaitable<void> {
    exchange.OnDisconnect([&] { gone = true; });
    begun = true;
    for (int i = 0; i < 10'000 && !gone; ++i) co_await SleepForTest(1ms);
  });
  options_.admin_key = "";
  StartWith({&server});
  RawHttpClient client = Client();
  client.Send(RawHttpClient::Format("POST", "/v1/load_lora_adapter", R"({"lora_name":"a","lora_path":"/a"})"));
  ASSERT_TRUE(WaitUntil([&] { return begun.load(); }));
  const TimeNs began = clock_.Now();
  router_->Shutdown();
  EXPECT_LT(clock_.Now() - began, 5 * kNsPerSecond);
  const ClientResponse response = client.Read();
  EXPECT_EQ(response.status, 503);
  EXPECT_NE(response.body.find("shutting down"), std::string::npos) << response.body;
  EXPECT_TRUE(WaitUntil([&] { return gone.load(); }));
}

TEST_F(RouterTest, ChangesNoAdaptersWithoutTheKey) {
  ScriptedServer server(Replies(200, "Success"));
  options_.admin_key = "secret of the administrator";
  StartWith({&server});
  const std::string body = R"({"lora_name":"a"})";
  EXPECT_EQ(Client().Do("POST", "/v1/unload_lora_adapter", body).status, 401);
  EXPECT_EQ(Client().Do("POST", "/unload_lora_adapter", body, "Authorization: Bearer other\r\n").status, 401);
  EXPECT_TRUE(server.ids().empty());
  const char* key = "Authorization: Bearer secret of the administrator\r\n";
  EXPECT_EQ(Client().Do("POST", "/v1/unload_lora_adapter", body, key).status, 200);
  EXPECT_EQ(server.ids().size(), 1u);
}

TEST_F(RouterTest, ChangesNoAdaptersWhereNoKeyIsSet) {
  ScriptedServer server(Replies(200, "Success"));
  StartWith({&server});
  EXPECT_EQ(Client().Do("POST", "/v1/load_lora_adapter", "{}", "Authorization: Bearer k\r\n").status, 403);
  EXPECT_TRUE(server.ids().empty());
}

// A load that one server does not answer is answered for the others.
TEST_F(RouterTest, AServerThatHangsDoesNotHoldALoadUp) {
  asio::io_context context;
  asio::ip::tcp::acceptor hanging(context, {asio::ip::make_address("127.0.0.1"), 0});  // accepts, and says nothing
  const ServerAddress silent =
      Must(ParseServerAddress("127.0.0.1:" + std::to_string(hanging.local_endpoint().port()), "test"));
  ScriptedServer good(Replies(200, "Success"));
  ScriptedServer slow([](HttpExchange& exchange) -> asio::awaitable<void> {
    co_await SleepForTest(600ms);
    co_await Replies(200, "Success")(exchange);
  });
  options_.admin_key = "";
  options_.access.poll_patience = 50ms;
  options_.access.silence_patience = 200ms;
  Start({good.address(), slow.address(), silent});
  ASSERT_TRUE(WaitUntil([&] { return Ready() == 2; }));
  const Json answer = Client().Do("POST", "/v1/load_lora_adapter", R"({"lora_name":"a","lora_path":"/a"})").json();
  EXPECT_FALSE(answer["ok"].get<bool>());
  EXPECT_EQ(answer["message"], "2 of 3 servers did it") << answer.dump();
  for (const Json& server : answer["servers"]) {
    if (server["server"] != silent.name) continue;
    EXPECT_NE(server["answer"].get<std::string>().find("it answers no probes"), std::string::npos) << answer.dump();
  }
}

// What a router sends is what its client sent: nothing that a server's checks depend on is made up.
TEST_F(RouterTest, InventsNoContentType) {
  ScriptedServer server(Replies(200, "Success"));
  options_.admin_key = "";
  StartWith({&server});
  RawHttpClient client = Client();
  for (const char* path : {"/v1/load_lora_adapter", kChat}) {
    client.Send("POST " + std::string(path) + " HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    EXPECT_EQ(client.Read().status, 200);
    EXPECT_EQ(server.last_header("Content-Type"), "") << path;
    EXPECT_EQ(server.last_header("User-Agent"), "") << path;
    EXPECT_EQ(Client().Do("POST", path, "{}", "Content-Type: text/plain\r\n").status, 200);
    EXPECT_EQ(server.last_header("Content-Type"), "text/plain") << path;
  }
}

TEST_F(RouterTest, NoSpellingOfAPathPassesTheCheckOfTheAdministrator) {
  ScriptedServer server(Replies(200, "Success"));
  options_.admin_key = "secret of the administrator";
  StartWith({&server});
  for (const char* path :
       {"/v1//load_lora_adapter", "/v1/./load_lora_adapter", "/v1/load_lora_adapter/", "/v1/x/../load_lora_adapter",
        "/v1/load_lora_adapter;x=1", "/v1/%2e/load_lora_adapter", "/v1/%2fload_lora_adapter",
        "/v1/load_lora_adapter%2f", "/v1/\\load_lora_adapter", "/v1/load_lora_adapter/."}) {
    const ClientResponse response = Client().Do("POST", path, R"({"lora_name":"a"})");
    EXPECT_EQ(response.status, 404) << path;
    EXPECT_NE(response.body.find("expected the path /v1/load_lora_adapter"), std::string::npos) << response.body;
  }
  EXPECT_EQ(Client().Do("POST", "/v1/load%5flora_adapter", "{}").status, 401);  // is the route itself
  EXPECT_TRUE(server.ids().empty());
}

// Whatever a router of the same bounds lets through, a server takes.
TEST_F(RouterTest, ARequestWithinTheBoundsOfARouterIsWithinThoseOfItsServers) {
  ScriptedServer server(Replies(200, "{}"));
  options_.access.fleet_key = "the fleet's key 0123456789";
  StartWith({&server});
  std::string fields;
  for (int i = 0; i < 93; ++i) fields += "X-" + std::to_string(i) + ": y\r\n";
  fields += "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\ntracestate: a=b\r\n";
  int refused = 0;
  for (int more = 0; more < 12; ++more) {
    const ClientResponse response = Client().Do("POST", kChat, kBody, fields);
    refused += response.status == 431 ? 1 : 0;
    EXPECT_TRUE(response.status == 200 || response.Header("x-loramux-server").empty()) << more;
    fields += "X-More-" + std::to_string(more) + ": y\r\n";
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 12);
}

TEST_F(RouterTest, AServerThatAlwaysSaysNotStartedGetsNothingForAWhile) {
  ScriptedServer refusing(Replies(503, "{}", {{"x-loramux-not-started", "1"}})), good(Replies(200, "{}"));
  options_.dispatch.most_ejected = 1;
  StartWith({&refusing, &good});
  for (int i = 0; i < 60; ++i) EXPECT_EQ(Ask().status, 200);
  EXPECT_EQ(refusing.ids().size(), 5u);
}

// Two keys of the router, with the limits that their entries say.
class RouterKeysTest : public RouterTest {
 protected:
  // `limits`: of the key "acme".
  void UseKeys(const std::string& limits) {
    options_.api_key_file = testing::TempDir() + "router_limits_" + std::to_string(getpid()) + ".json";
    std::ofstream(options_.api_key_file)
        << R"({"keys":[{"name":"acme","key":"sk-acme-0123456789","models":["*"],"limits":)" << limits
        << R"(},{"name":"other","key":"sk-other-0123456789","models":["*"]}]})";
  }
  ClientResponse AskAs(const std::string& key, const std::string& body = kBody) {
    return Ask(body, "Authorization: Bearer sk-" + key + "-0123456789\r\n");
  }
};

TEST_F(RouterKeysTest, TheRatesOfAKeyHold) {
  ScriptedServer server(Replies(200, R"({"usage":{"prompt_tokens":500,"completion_tokens":600}})"));
  UseKeys(R"({"requests_per_second":0.001,"burst":3})");
  StartWith({&server});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(AskAs("acme").status, 200);
  const ClientResponse refused = AskAs("acme");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.json()["error"]["type"], "RateLimitError");
  EXPECT_NE(refused.body.find("Too many requests for the API key `acme`"), std::string::npos) << refused.body;
  EXPECT_FALSE(refused.Header("Retry-After").empty());
  EXPECT_EQ(refused.Header("x-llm-d-request-dropped-reason"), "rejected-saturated");
  EXPECT_EQ(AskAs("other").status, 200);
  EXPECT_EQ(server.ids().size(), 4u);
}

TEST_F(RouterKeysTest, TokensOfAnswersAreADebt) {
  ScriptedServer server([](HttpExchange& exchange) -> asio::awaitable<void> {
    const bool stream = exchange.request().body.find("stream") != std::string::npos;
    if (!stream) co_return co_await Replies(200, R"({"usage":{"prompt_tokens":50,"completion_tokens":60}})")(exchange);
    co_await exchange.StartStream("text/event-stream");
    for (int i = 0; i < 150; ++i) co_await exchange.Write("data: {\"n\":1}\n\n");
    co_await exchange.EndStream();
  });
  UseKeys(R"({"tokens_per_second":100})");
  StartWith({&server});
  EXPECT_EQ(AskAs("acme").status, 200);
  const ClientResponse refused = AskAs("acme");
  EXPECT_EQ(refused.status, 429);
  EXPECT_NE(refused.body.find("Too many tokens"), std::string::npos) << refused.body;
  ASSERT_TRUE(WaitUntil([&] { return AskAs("acme", R"({"stream":true})").status == 200; }));
  EXPECT_EQ(AskAs("acme").status, 429);  // the events of a stream that does not name its tokens are counted
}

TEST_F(RouterKeysTest, SequencesInProgressAreBounded) {
  std::atomic<bool> finish{false};
  std::atomic<int> begun{0};
  ScriptedServer server([&](HttpExchange& exchange) -> asio::awaitable<void> {
    ++begun;
    while (!finish) co_await SleepForTest(1ms);
    co_await Replies(200, "{}")(exchange);
  });
  UseKeys(R"({"concurrency":3})");
  StartWith({&server});
  EXPECT_EQ(AskAs("acme", R"({"prompt":"x","n":4})").status, 400);  // it could not fit later either
  RawHttpClient two = Client(), one = Client();
  const std::string key = "Authorization: Bearer sk-acme-0123456789\r\n";
  two.Send(RawHttpClient::Format("POST", kChat, R"({"prompt":["x","y"]})", key));
  ASSERT_TRUE(WaitUntil([&] { return begun == 1; }));
  EXPECT_EQ(AskAs("acme", R"({"prompt":"x","n":2})").status, 429);
  one.Send(RawHttpClient::Format("POST", kChat, kBody, key));
  ASSERT_TRUE(WaitUntil([&] { return begun == 2; }));
  EXPECT_EQ(AskAs("acme").status, 429);
  finish = true;
  EXPECT_EQ(two.Read().status, 200);
  EXPECT_EQ(one.Read().status, 200);
  EXPECT_TRUE(WaitUntil([&] { return AskAs("acme").status == 200; }));
}

TEST_F(RouterKeysTest, ServersLearnWhoseRequestItIs) {
  ScriptedServer server(Replies(200, "{}"));
  UseKeys("{}");
  options_.access.fleet_key = "the fleet's key 0123456789";
  options_.trust_fairness_header = true;
  StartWith({&server});
  const auto vouched = [&] {
    return Must(ReadVouchedCaller(server.last_header(kVouchedCallerHeader), options_.access.fleet_key,
                                  server.ids().back(), clock_.UnixSeconds()));
  };
  EXPECT_EQ(AskAs("acme").status, 200);
  EXPECT_EQ(vouched(), (VouchedCaller{"acme", "", "127.0.0.1"}));
  Ask(kBody,
      "Authorization: Bearer sk-other-0123456789\r\nx-loramux-caller: forged\r\n"
      "x-llm-d-inference-fairness-id: team\r\n");
  EXPECT_EQ(vouched(), (VouchedCaller{"other", "team", "127.0.0.1"}));
}

TEST_F(RouterTest, AKeyForSomeModelsHoldsForEveryNameInABody) {
  ScriptedServer server(Replies(200, "{}"));
  options_.api_key_file = testing::TempDir() + "router_test_keys.json";
  std::ofstream(options_.api_key_file) << R"({"keys":[{"name":"k","key":"0123456789abcdef","models":["ok"]}]})";
  StartWith({&server});
  const auto ask = [&](const std::string& body) {
    return Client().Do("POST", kChat, body, "Authorization: Bearer 0123456789abcdef\r\n").status;
  };
  EXPECT_EQ(ask(R"({"model":"ok"})"), 200);
  EXPECT_EQ(ask(R"({"model":"ok","lora_path":null})"), 200);
  for (const char* body : {R"({"model":"secret","lora_path":"ok"})", R"({"model":"ok","lora_path":"secret"})",
                           R"({"model":"secret","parameters":{"model":"ok"}})", R"({"model":"ok","model":"secret"})",
                           R"({"model":"ok","mod\u0065l":"secret"})"}) {
    EXPECT_EQ(ask(body), 404) << body;
  }
  for (const char* body : {"{}", R"({"model":null})", R"({"model":"ok","lora_path":["secret"]})",
                           R"({"model":"ok","lora":[{"id":"secret"}]})", R"({"model":"ok","merged_adapters":["x"]})",
                           R"({"x":"\ud800\u0041","model":"secret"})", "model=secret"}) {
    EXPECT_EQ(ask(body), 400) << body;
  }
  EXPECT_EQ(server.ids().size(), 2u);
}

TEST_F(RouterTest, HeadersOfLlmDSteer) {
  const auto echo = [](HttpExchange& exchange) -> asio::awaitable<void> {
    HttpReply reply{200, exchange.request().body};
    co_await exchange.Send(std::move(reply));
  };
  ScriptedServer one(echo), two(echo);
  StartWith({&one, &two});
  const ClientResponse first = Ask(R"({"model":"alias","prompt":"x"})", "x-llm-d-model-name-rewrite: real\r\n");
  EXPECT_EQ(first.body, R"({"model":"real","prompt":"x"})");
  const std::string server = first.Header("x-loramux-server"), token = first.Header("x-session-token");
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(Ask(kBody, "x-session-token: " + token + "\r\n").Header("x-loramux-server"), server);
  }
  EXPECT_EQ(Ask("[]", "x-llm-d-model-name-rewrite: real\r\n").status, 400);
  EXPECT_EQ(Ask(kBody, "x-llm-d-slo-tpot-ms: soon\r\n").status, 400);
  EXPECT_EQ(Ask(kBody, "x-llm-d-slo-tpot-ms: 50\r\n").status, 200);
}

TEST_F(RouterTest, HealthIsThatOfTheServers) {
  ScriptedServer server(Replies(200, "{}"));
  StartWith({&server});
  EXPECT_EQ(Client().Do("GET", "/health").status, 200);
  server.healthy = false;
  EXPECT_TRUE(WaitUntil([&] { return Client().Do("GET", "/health").status == 503; }));
  server.healthy = true;
  EXPECT_TRUE(WaitUntil([&] { return Client().Do("GET", "/health").status == 200; }));
  router_->StartDraining();
  EXPECT_EQ(Client().Do("GET", "/health").status, 503);
  EXPECT_EQ(Ask().status, 200);
  EXPECT_EQ(Client().Do("GET", "/version").json()["role"], "router");
}

TEST_F(RouterTest, ServersComeAndGoWhileRequestsRun) {
  std::atomic<bool> begun{false}, finish{false};
  ScriptedServer old([&](HttpExchange& exchange) -> asio::awaitable<void> {
    begun = true;
    while (!finish) co_await SleepForTest(1ms);
    co_await Replies(200, R"({"from":"old"})")(exchange);
  });
  ScriptedServer fresh(Replies(200, R"({"from":"fresh"})"));
  StartWith({&old});
  RawHttpClient client = Client();
  client.Send(RawHttpClient::Format("POST", kChat, kBody));
  ASSERT_TRUE(WaitUntil([&] { return begun.load(); }));
  router_->SetServers({fresh.address()});
  ASSERT_TRUE(WaitUntil([&] { return Ask().Header("x-loramux-server") == fresh.address().name; }));
  finish = true;
  EXPECT_EQ(client.Read().json()["from"], "old");
  router_->SetServers({});
  ASSERT_TRUE(WaitUntil([&] { return Health()["servers"].empty(); }));
  const ClientResponse response = Ask();
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.Header("x-loramux-not-started"), "1");
}

TEST_F(RouterTest, AShutdownEndsStreamsWithAnError) {
  std::atomic<bool> begun{false};
  ScriptedServer server([&](HttpExchange& exchange) -> asio::awaitable<void> {
    bool alive = co_await exchange.StartStream("text/event-stream");
    while (alive) {
      alive = co_await exchange.Write("data: 1\n\n");
      begun = true;
      co_await SleepForTest(5ms);
    }
  });
  StartWith({&server});
  RawHttpClient client = Client();
  client.Send(RawHttpClient::Format("POST", kChat, kBody));
  ASSERT_TRUE(WaitUntil([&] { return begun.load(); }));
  const DrainReport report = router_->Shutdown();
  EXPECT_EQ(report.in_flight, 1);
  EXPECT_EQ(report.dropped.size(), 1u);
  const ClientResponse response = client.Read();
  EXPECT_TRUE(response.complete);
  EXPECT_EQ(response.events().back(), "[DONE]");
}

// A fleet of more servers than the budget of retries has retries.
TEST_F(RouterTest, ContentThatServersHaveNotGotIsSoughtAtAll) {
  const auto other = Replies(503, R"({"error":{"message":"other content"}})",
                             {{"x-loramux-not-started", "1"}, {"x-loramux-other-content", "1"}});
  std::vector<std::unique_ptr<ScriptedServer>> servers;
  for (int i = 0; i < 7; ++i) servers.push_back(std::make_unique<ScriptedServer>(other));
  servers.push_back(std::make_unique<ScriptedServer>(Replies(200, "{}")));
  std::vector<ScriptedServer*> all;
  for (const auto& server : servers) all.push_back(server.get());
  StartWith(all);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Ask(R"({"model":"sql@)" + std::string(64, 'd') + R"("})").status, 200);
  const Json health = Health();
  ASSERT_EQ(health["servers"].size(), servers.size());
  for (const Json& server : health["servers"]) EXPECT_EQ(server["state"], "ready") << "to lack content is no fault";
}

TEST_F(RouterTest, TheCatalogueNamesTheContent) {
  ScriptedServer server(Replies(200, "{}"));
  StartWith({&server});
  router_->SetCatalogue({{"sql", {.digest = "abc"}}});
  const auto digest_of = [&](const char* model) {
    Ask(std::string(R"({"model":")") + model + R"(","prompt":"x"})");
    return server.last_header("x-loramux-require-digest");
  };
  EXPECT_TRUE(WaitUntil([&] { return digest_of("sql") == "abc"; }));
  EXPECT_EQ(digest_of("law"), "");
  const std::string pinned(64, 'd');  // what the client asks for comes before the catalogue
  EXPECT_EQ(digest_of(("sql@" + pinned).c_str()), pinned);
  EXPECT_EQ(digest_of(("law@" + pinned).c_str()), pinned);
}

}  // namespace
}  // namespace loramux::router_test
