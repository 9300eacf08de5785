// The events of Live, and the connections that watch them.
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "auth/access.h"
#include "base/wait_until_for_test.h"
#include "http/raw_client_for_test.h"
#include "http/server.h"
#include "server/page/live_event.h"
#include "server/page/live_service.h"
#include "server/page/page_files.h"
#include "server/page/page_service.h"
#include "server/server_fixture.h"

namespace loramux::live_test {
namespace {

constexpr const char* kHostile = "<img src=x>\n\ndata: {}";

EngineSnapshot State() {
  EngineSnapshot engine;
  engine.made_at = 5 * kNsPerSecond;
  engine.lane_waiting = {2, 1};
  EngineStats& stats = engine.stats;
  stats.running = 4;
  stats.waiting = 3;
  stats.device.capacity_pages = 100;
  stats.device.free_pages = 20;
  stats.device.page_bytes = 4096;
  stats.device.used_pages = {50, 30};
  stats.history_pages = 35;
  stats.idle_adapter_pages = 10;
  for (const std::int64_t running : {1, 3, 0}) {
    AdapterSnapshot adapter;
    adapter.version.generation = AdapterGeneration{static_cast<std::uint32_t>(engine.adapters.size() + 1)};
    adapter.version.name = running == 3 ? kHostile : "sql";
    adapter.version.pages = 2;
    adapter.version.max_rank = 8;
    adapter.device = TierState::kResident;
    adapter.running = running;
    adapter.loads = 1;
    adapter.uses = 7;
    adapter.last_load_time = 12 * kNsPerMs;
    adapter.last_use = 3 * kNsPerSecond;
    engine.adapters.push_back(adapter);
  }
  return engine;
}

SequenceEnd End(TimeNs ttft, std::int32_t tokens) {
  SequenceEnd end;
  end.reason = FinishReason::kStop;
  end.adapter = "sql";
  end.tenant = "acme";
  end.received = kNsPerSecond;
  end.first_token = kNsPerSecond + ttft;
  end.last_token = end.first_token + 40 * kNsPerMs;
  end.generated_tokens = tokens;
  return end;
}

TEST(LiveEvent, SaysWhatTheEngineSays) {
  const ServingFixture fixture;
  const EngineSnapshot engine = State();
  const std::string text = LiveEvent({.engine = &engine,
                                      .registry = &fixture.registry,
                                      .ends = {{End(9 * kNsPerMs, 5), End(kNsPerMs, 1), End(0, 0)}, 2},
                                      .unix_seconds = 77,
                                      .viewers = 2});
  EXPECT_EQ(text.find('\n'), std::string::npos);  // it is one event
  const Json event = Json::parse(text);
  EXPECT_EQ(event["now_ms"], 5000);
  EXPECT_EQ(event["device"],
            Json::parse(R"({"pages":100,"free":20,"requests":15,"history":35,"adapters":20,"idle_adapters":10})"));
  EXPECT_EQ(event["requests"]["lanes"], Json::parse("[2,1]"));
  ASSERT_EQ(event["adapters"]["busy"].size(), 2u);
  EXPECT_EQ(event["adapters"]["busy"][0]["name"], kHostile);
  EXPECT_EQ(event["ended"][0]["ttft_ms"], 9);
  EXPECT_EQ(event["ended"][0]["tpot_ms"], 10);
  EXPECT_EQ(event["ended"][0]["tenant"], "acme");
  EXPECT_EQ(event["ended"][1]["ttft_ms"], 1);
  EXPECT_TRUE(event["ended"][1]["tpot_ms"].is_null());
  EXPECT_TRUE(event["ended"][2]["ttft_ms"].is_null());
  EXPECT_EQ(event["ended_left_out"], 2);
}

TEST(AdapterList, NamesWhatTheCallerMaySee) {
  const ServingFixture fixture;
  const EngineSnapshot engine = State();
  const Json all = AdapterList(engine, fixture.registry, NoFinder(), [](std::string_view) { return true; });
  ASSERT_EQ(all.size(), 1u);  // the others are not registered
  EXPECT_EQ(all[0]["name"], "sql");
  EXPECT_EQ(all[0]["place"], "device");
  EXPECT_EQ(all[0]["bytes"], 2 * 4096);
  EXPECT_EQ(all[0]["last_load_ms"], 12);
  EXPECT_EQ(all[0]["idle_ms"], 2000);
  EXPECT_TRUE(AdapterList(engine, fixture.registry, NoFinder(), [](std::string_view) { return false; }).empty());
}

TEST(RecentEnds, KeepsOnlyWhileItIsWatched) {
  RecentEnds ends;
  ends.Add(End(0, 1));
  EXPECT_TRUE(ends.Take().ends.empty());
  ends.Watch(true);
  for (std::size_t i = 0; i < RecentEnds::kMostKept + 3; ++i) ends.Add(End(0, 1));
  const RecentEnds::Taken taken = ends.Take();
  EXPECT_EQ(taken.ends.size(), RecentEnds::kMostKept);
  EXPECT_EQ(taken.left_out, 3);
  EXPECT_TRUE(ends.Take().ends.empty());
  ends.Add(End(0, 1));
  ends.Watch(false);
  EXPECT_TRUE(ends.Take().ends.empty());
}

// A server with the routes of the page alone.
class LiveServer : public testing::Test {
 protected:
  // The HTTP server has more patience with slow clients than the streams have.
  LiveServer() : server_({.port = 0, .write_timeout = std::chrono::minutes(10)}, routes_, fixture_.clock) {
    live_.AddRoutes(routes_);
    AddPageRoutes(routes_);
  }
  void SetUp() override { ASSERT_TRUE(server_.Start().ok()); }
  void TearDown() override {
    live_.Stop();
    server_.Shutdown();
  }

  ServingFixture fixture_;
  std::atomic<int> asked_ = 0;
  std::atomic<bool> large_ = false;   // events are more than the sockets take
  std::atomic<bool> silent_ = false;  // the engine does not answer
  ServerMetrics metrics_{kTopAdapters, "base", 100};
  LiveService live_{metrics_,
                    [this](std::chrono::milliseconds) {
                      ++asked_;
                      if (silent_) return std::shared_ptr<EngineSnapshot>();
                      auto state = std::make_shared<EngineSnapshot>(State());
                      if (large_) state->adapters.front().version.name.assign(std::size_t{16} << 20, 'x');
                      return state;
                    },
                    fixture_.registry,
                    NoFinder(),
                    fixture_.clock,
                    "key",
                    std::chrono::milliseconds(100)};
  RouteTable routes_;
  HttpServer server_;
};

TEST_F(LiveServer, AsksTheEngineOnlyWhileAConnectionWatches) {
  EXPECT_EQ(asked_, 0);
  {
    RawHttpClient first(server_.port()), second(server_.port());
    first.Send(RawHttpClient::Format("GET", "/internal/live"));
    EXPECT_THAT(first.ReadUntil("\n\n"), testing::HasSubstr("text/event-stream"));
    second.Send(RawHttpClient::Format("GET", "/internal/live"));
    second.ReadUntil("\"viewers\":2");
    first.ReadUntil("\"viewers\":2");  // one event for both
    EXPECT_EQ(live_.viewers(), 2);
    EXPECT_LE(asked_, 4);
  }
  ASSERT_TRUE(WaitUntil([&] { return live_.viewers() == 0; }));
  const int asked = asked_;
  metrics_.CountEnd(End(0, 1));
  EXPECT_TRUE(metrics_.ends().Take().ends.empty());
  std::this_thread::sleep_for(std::chrono::milliseconds(1300));  // longer than between two events
  EXPECT_LE(asked_, asked + 1);                                  // one may have been on its way
}

TEST_F(LiveServer, StopEndsTheStreams) {
  RawHttpClient client(server_.port());
  client.Send(RawHttpClient::Format("GET", "/internal/live"));
  client.ReadUntil("data: ");
  live_.Stop();
  EXPECT_EQ(live_.viewers(), 0);
  client.ReadUntil("0\r\n\r\n");
  EXPECT_EQ(RawHttpClient(server_.port()).Do("GET", "/internal/live").status, 503);
}

TEST_F(LiveServer, HeadHasNoEvents) {
  RawHttpClient client(server_.port());
  client.Send(RawHttpClient::Format("HEAD", "/internal/live"));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), testing::HasSubstr("text/event-stream"));
  EXPECT_EQ(client.Do("GET", "/internal/adapters").status, 200);  // the connection goes on
  EXPECT_EQ(asked_, 1);
}

// The service wakes its viewers each second, also without an event.
TEST_F(LiveServer, ASilentEngineIsAnError) {
  silent_ = true;
  EXPECT_EQ(RawHttpClient(server_.port()).Do("GET", "/internal/live").status, 503);
  EXPECT_EQ(RawHttpClient(server_.port()).Do("GET", "/internal/adapters").status, 503);
}

TEST_F(LiveServer, DropsAViewerThatDoesNotRead) {
  large_ = true;
  RawHttpClient client(server_.port());
  client.Send(RawHttpClient::Format("GET", "/internal/live"));
  ASSERT_TRUE(WaitUntil([&] { return live_.viewers() == 1; }));
  EXPECT_TRUE(WaitUntil([&] { return live_.viewers() == 0; }));
}

TEST_F(LiveServer, AdmitsSoManyViewers) {
  std::vector<std::unique_ptr<RawHttpClient>> clients;
  for (int i = 0; i < kMaxLiveViewers; ++i) {
    clients.push_back(std::make_unique<RawHttpClient>(server_.port()));
    clients.back()->Send(RawHttpClient::Format("GET", "/internal/live"));
  }
  ASSERT_TRUE(WaitUntil([&] { return live_.viewers() == kMaxLiveViewers; }));
  EXPECT_EQ(RawHttpClient(server_.port()).Do("GET", "/internal/live").status, 503);
  EXPECT_EQ(live_.viewers(), kMaxLiveViewers);
}

// A server whose keys permit one model each.
class LiveServerWithKeys : public LiveServer {
 protected:
  LiveServerWithKeys() {
    routes_.SetGate([](HttpRequest& request) -> std::optional<HttpReply> {
      auto key = std::make_shared<ApiKey>();
      key->models = {std::string(request.Header("x-api-key"))};
      request.caller = std::move(key);
      return std::nullopt;
    });
  }
  ClientResponse Get(const std::string& path, const std::string& models) {
    RawHttpClient client(server_.port());
    client.Send("GET " + path + " HTTP/1.1\r\nHost: x\r\nx-api-key: " + models + "\r\n\r\n");
    return client.Read();
  }
};

TEST_F(LiveServerWithKeys, ShowsAKeyNoMoreThanItPermits) {
  EXPECT_EQ(Get("/internal/live", "sql").status, 403);
  EXPECT_EQ(asked_, 0);
  EXPECT_EQ(Get("/internal/adapters", "law").json()["adapters"].size(), 0u);
  EXPECT_EQ(Get("/internal/adapters", "sql").json()["adapters"].size(), 1u);
  EXPECT_EQ(Get("/internal/adapters", "*").json()["adapters"].size(), 1u);
}

TEST_F(LiveServer, ListsAdapters) {
  const ClientResponse reply = RawHttpClient(server_.port()).Do("GET", "/internal/adapters");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.json()["changes"], "key");
  EXPECT_EQ(reply.json()["adapters"][0]["name"], "sql");
}

TEST_F(LiveServer, ServesThePageWithAStrictPolicy) {
  RawHttpClient client(server_.port());
  for (const PageFile& file : PageFiles()) {
    std::string path = "/page/" + std::string(file.name);
    if (file.name == "index.html") path = "/";
    if (file.name == "docs.html") path = "/docs";
    const ClientResponse reply = client.Do("GET", path);
    EXPECT_EQ(reply.status, 200) << path;
    EXPECT_EQ(reply.body, file.content);
    EXPECT_EQ(reply.Header("content-security-policy"), kPagePolicy);
    EXPECT_EQ(reply.Header("x-content-type-options"), "nosniff");
    client.Send("GET " + path + " HTTP/1.1\r\nHost: x\r\nIf-None-Match: " + reply.Header("etag") + "\r\n\r\n");
    EXPECT_EQ(client.Read().status, 304) << path;
  }
  EXPECT_GE(PageFiles().size(), 12u);
}

// The policy would refuse these, and the page would be without them.
TEST(PageFiles, HaveNothingInlineAndNothingFromElsewhere) {
  for (const PageFile& file : PageFiles()) {
    EXPECT_EQ(file.content.find("innerHTML"), std::string_view::npos) << file.name;
    EXPECT_EQ(file.content.find("insertAdjacentHTML"), std::string_view::npos) << file.name;
    EXPECT_EQ(file.content.find("eval("), std::string_view::npos) << file.name;
    EXPECT_EQ(file.content.find("https://"), std::string_view::npos) << file.name;
    if (!file.name.ends_with(".html")) continue;
    EXPECT_EQ(file.content.find(" style="), std::string_view::npos) << file.name;
    EXPECT_EQ(file.content.find(" on"), std::string_view::npos) << file.name;
    EXPECT_EQ(file.content.find("=\"/"), std::string_view::npos) << file.name << " has an absolute path";
  }
}

}  // namespace
}  // namespace loramux::live_test
