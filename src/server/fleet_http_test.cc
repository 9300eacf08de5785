// What routers ask of a server, over HTTP, with a scripted engine behind it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <gmock/gmock.h>

#include "base/wait_until_for_test.h"
#include "cluster/offered_names.h"
#include "cluster/prefix_blocks.h"
#include "cluster/server_snapshot.h"
#include "http/raw_client_for_test.h"
#include "server/server.h"
#include "server/server_fixture.h"

namespace loramux::fleet_http_test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kKey = "Authorization: Bearer 0123456789abcdef\r\n";

class FleetHttp : public testing::Test {
 protected:
  FleetHttp() : service_([](const GenerationRequest&) { return Say("hello"); }) {
    options_.http.port = 0;
    options_.http.linger_timeout = 200ms;
    options_.completion.max_model_len = kTestMaxTokens;
    options_.fleet.drain_notice = 0ms;
    state_.stats.device.used_pages[static_cast<std::size_t>(PageCategory::kKv)] = 100;
    state_.page_tokens = 16;
  }
  ~FleetHttp() override {
    if (server_ != nullptr) server_->Shutdown();
  }
  void Start() {
    ServerParts parts = fixture_.Parts(service_);
    parts.engine_snapshot = [this](auto) { return Ask(); };
    auto server = Server::Start(options_, parts);
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = std::move(server).value();
  }
  std::shared_ptr<const EngineSnapshot> Ask() {
    const std::lock_guard lock(mutex_);
    ++asked_;
    if (silent_) return nullptr;
    state_.made_at = fixture_.clock.Now();
    return std::make_shared<EngineSnapshot>(state_);
  }
  void Change(const std::function<void(EngineSnapshot&)>& change) {
    const std::lock_guard lock(mutex_);
    change(state_);
  }
  int asked() {
    const std::lock_guard lock(mutex_);
    return asked_;
  }
  ClientResponse Get(const std::string& target, const std::string& headers = "") {
    return RawHttpClient(server_->port()).Do("GET", target, "", headers);
  }
  ClientResponse Post(const std::string& body, const std::string& headers = "") {
    return RawHttpClient(server_->port()).Do("POST", "/v1/completions", body, headers);
  }
  // The snapshot in an answer, which must be one.
  static ServerSnapshot Parse(const ClientResponse& response) {
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_FALSE(response.Header("x-loramux-snapshot-age-ms").empty());
    auto snapshot = ParseServerSnapshot(response.body);
    EXPECT_TRUE(snapshot.ok()) << snapshot.error().message;
    return snapshot.ok() ? *snapshot : ServerSnapshot();
  }
  ServerSnapshot Poll(const std::string& query = "") { return Parse(Get("/internal/snapshot" + query)); }
  static std::string After(const ServerSnapshot& snapshot, int wait_ms) {
    return "?after=" + std::to_string(snapshot.version) + "&instance=" + snapshot.instance +
           "&wait_ms=" + std::to_string(wait_ms);
  }

  ServerOptions options_;
  ServingFixture fixture_;
  ScriptedService service_;
  std::mutex mutex_;
  EngineSnapshot state_;
  int asked_ = 0;
  bool silent_ = false;
  std::unique_ptr<Server> server_;
};

TEST_F(FleetHttp, VersionsAscendOnlyWhenSomethingChanged) {
  Start();
  const ServerSnapshot first = Poll();
  EXPECT_EQ(first.version, 1u);
  EXPECT_EQ(first.base_model, "base");
  EXPECT_EQ(first.instance.size(), 32u);
  EXPECT_EQ(Poll(), first);
  EXPECT_EQ(Poll(After(first, 300)), first);  // waits in vain, over several states of the engine
  EXPECT_GE(asked(), 3);
  Change([](EngineSnapshot& state) { state.stats.running = 7; });
  const ServerSnapshot second = Poll(After(first, 30000));
  EXPECT_EQ(second.version, 2u);
  EXPECT_EQ(second.running, 7);
  EXPECT_EQ(Poll(After(first, 30000)), second);  // behind already: at once
  ServerSnapshot of_another = second;
  of_another.instance = "another";
  EXPECT_EQ(Poll(After(of_another, 30000)), second);
}

TEST_F(FleetHttp, TheEngineIsAskedOnlyWhileARouterPolls) {
  Start();
  std::this_thread::sleep_for(250ms);
  EXPECT_EQ(asked(), 0);
  const ServerSnapshot first = Poll();
  std::this_thread::sleep_for(250ms);
  EXPECT_EQ(asked(), 1);
  Poll(After(first, 1000));
  EXPECT_LE(asked(), 12);  // at most every 100 ms
}

TEST_F(FleetHttp, AWaitingPollWakesOnChange) {
  Start();
  const ServerSnapshot first = Poll();
  RawHttpClient router(server_->port());
  router.Send(RawHttpClient::Format("GET", "/internal/snapshot" + After(first, 30000)));
  std::this_thread::sleep_for(150ms);
  EXPECT_FALSE(router.HasBytes());
  Change([](EngineSnapshot& state) { state.stats.waiting = 1; });
  EXPECT_EQ(Parse(router.Read()).waiting, 1);
}

TEST_F(FleetHttp, ASilentEngineIsNoState) {
  silent_ = true;
  Start();
  const ClientResponse response = Get("/internal/snapshot?wait_ms=0");
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.Header("x-loramux-not-started"), "");
  EXPECT_EQ(Get("/internal/snapshot?after=x").status, 400);
}

TEST_F(FleetHttp, WithApiKeysRoutersNeedTheirOwnKey) {
  options_.protection.api_keys = {"client-key-client-key"};
  Start();
  for (const char* path : {"/internal/snapshot", "/internal/profile"}) {
    for (const std::string& headers : {std::string(), std::string("Authorization: Bearer client-key-client-key\r\n")}) {
      const ClientResponse refused = Get(path, headers);
      EXPECT_EQ(refused.status, 403);
      EXPECT_THAT(refused.body, HasSubstr("--fleet-key-file"));
    }
  }
}

TEST_F(FleetHttp, TheFleetKeyOpensBothRoutes) {
  options_.protection.api_keys = {"client-key-client-key"};
  options_.fleet.key = "0123456789abcdef";
  options_.fleet.profile = R"({"format":"p"})";
  options_.fleet.profile_id = "00ff";
  Start();
  EXPECT_EQ(Get("/internal/snapshot").status, 401);
  EXPECT_EQ(Get("/internal/snapshot", "Authorization: Bearer client-key-client-key\r\n").status, 401);
  EXPECT_EQ(Get("/internal/profile").status, 401);
  EXPECT_EQ(Parse(Get("/internal/snapshot", kKey)).profile, "00ff");
  const ClientResponse profile = Get("/internal/profile", kKey);
  EXPECT_EQ(profile.status, 200);
  EXPECT_EQ(profile.body, R"({"format":"p"})");
}

TEST_F(FleetHttp, WithoutAProfileThereIsNone) {
  Start();
  const ClientResponse response = Get("/internal/profile");
  EXPECT_EQ(response.status, 404);
  EXPECT_THAT(response.body, HasSubstr("--profile FILE"));
}

TEST_F(FleetHttp, TheDrainIsPublishedBeforeHealthTurns) {
  options_.fleet.drain_notice = 1000ms;
  Start();
  const ServerSnapshot first = Poll();
  EXPECT_FALSE(first.draining);
  RawHttpClient router(server_->port()), client(server_->port()), other(server_->port());
  EXPECT_EQ(other.Do("GET", "/health").status, 200);  // so that its connection is there
  router.Send(RawHttpClient::Format("GET", "/internal/snapshot" + After(first, 30000)));
  std::this_thread::sleep_for(50ms);
  std::thread shutdown([this] { server_->Shutdown(); });
  const ServerSnapshot last = Parse(router.Read());
  EXPECT_TRUE(last.draining);
  EXPECT_EQ(other.Do("GET", "/health").status, 200);
  EXPECT_EQ(client.Do("POST", "/v1/completions", R"({"model":"sql","prompt":"p"})").status, 200);
  // The next poll ends with the notice, and the server with it.
  router.Send(RawHttpClient::Format("GET", "/internal/snapshot" + After(last, 30000)));
  EXPECT_EQ(Parse(router.Read()).version, last.version);
  shutdown.join();
}

TEST_F(FleetHttp, WithoutARouterTheDrainIsAtOnce) {
  options_.fleet.drain_notice = 3'600'000ms;
  Start();
  server_->Shutdown();
}

TEST_F(FleetHttp, RequestsOfADrainingServerAreNotStarted) {
  service_.HoldSteps();
  Start();
  RawHttpClient running(server_->port()), late(server_->port()), prober(server_->port());
  for (RawHttpClient* client : {&late, &prober}) EXPECT_EQ(client->Do("GET", "/health").status, 200);  // they connect
  running.Send(RawHttpClient::Format("POST", "/v1/completions", R"({"model":"sql","prompt":"p"})"));
  ASSERT_TRUE(service_.WaitUntilRunning(1));
  std::thread shutdown([this] { server_->Shutdown(); });
  EXPECT_TRUE(WaitUntil([&] { return prober.Do("GET", "/health").status == 503; }));
  const ClientResponse refused = late.Do("POST", "/v1/completions", R"({"model":"sql","prompt":"p"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.Header("x-loramux-not-started"), "1");
  service_.ReleaseSteps();
  const ClientResponse answer = running.Read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.Header("x-loramux-not-started"), "");
  shutdown.join();
}

// A server of its own over a service.
std::unique_ptr<Server> ServerOver(ServingFixture& fixture, ScriptedService& service) {
  ServerOptions options;
  options.http.port = 0;
  options.completion.max_model_len = kTestMaxTokens;
  auto server = Server::Start(options, fixture.Parts(service));
  CHECK(server.ok());
  return std::move(server).value();
}

// What the engine refuses was not started; what fails afterwards was, even if the client has seen nothing of it.
TEST(FleetHttpErrors, OnlyWhatDidNotBeginSaysSo) {
  bool refuse = true;
  ScriptedService service([&](const GenerationRequest&) -> Result<Script> {
    if (refuse) return Unavailable("the device is lost");
    Script script;
    script.finish = FinishReason::kError;
    script.error = Unavailable("the device is lost");
    return script;
  });
  ServingFixture fixture;
  const std::unique_ptr<Server> server = ServerOver(fixture, service);
  RawHttpClient client(server->port());
  const std::string body = R"({"model":"base","prompt":"p"})";
  const ClientResponse refused = client.Do("POST", "/v1/completions", body);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.Header("x-loramux-not-started"), "1");
  refuse = false;
  const ClientResponse failed = client.Do("POST", "/v1/completions", body);
  EXPECT_EQ(failed.status, 503);
  EXPECT_EQ(failed.Header("x-loramux-not-started"), "");
  EXPECT_EQ(client.Do("POST", "/v1/completions", R"({"model":"base"})").Header("x-loramux-not-started"), "");
}

// The second of three choices is refused while the first one may run.
TEST(FleetHttpErrors, ARefusalAfterTheFirstChoiceIsNoSignThatNothingBegan) {
  std::atomic<int> asked{0};
  ScriptedService service([&](const GenerationRequest&) -> Result<Script> {
    if (++asked > 1) return Unavailable("the device is lost");
    return Say("hello");
  });
  ServingFixture fixture;
  const std::unique_ptr<Server> server = ServerOver(fixture, service);
  RawHttpClient client(server->port());
  const ClientResponse refused = client.Do("POST", "/v1/completions", R"({"model":"base","prompt":"p","n":3})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.Header("x-loramux-not-started"), "");
  EXPECT_EQ(asked, 2);
}

TEST_F(FleetHttp, TheDigestIsToldAndMayBeRequired) {
  auto adapter = std::make_shared<AdapterVersion>();
  adapter->name = "law";
  adapter->path = "adapters/law";
  adapter->file.digest = "00ff";
  ASSERT_TRUE(fixture_.registry.Commit(std::move(adapter)).ok());
  Start();
  const std::string law = R"({"model":"law","prompt":"p"})", base = R"({"model":"base","prompt":"p"})";
  EXPECT_EQ(Post(law).Header("X-Loramux-Adapter-Digest"), "00ff");
  EXPECT_EQ(Post(R"({"model":"law","prompt":"p","stream":true})").Header("X-Loramux-Adapter-Digest"), "00ff");
  EXPECT_EQ(Post(base).Header("X-Loramux-Adapter-Digest"), "");
  EXPECT_EQ(Post(law, "x-loramux-require-digest: 00ff\r\n").status, 200);
  for (const std::string& body : {law, base, std::string(R"({"model":"unknown","prompt":"p"})")}) {
    const ClientResponse refused = Post(body, "x-loramux-require-digest: aa\r\n");
    EXPECT_EQ(refused.status, 503) << body;
    EXPECT_EQ(refused.Header("x-loramux-not-started"), "1") << body;
    EXPECT_EQ(refused.Header("X-Loramux-Adapter-Digest"), "") << body;
  }
  EXPECT_EQ(Post(R"({"model":"unknown","prompt":"p"})").status, 404);
  EXPECT_EQ(service_.submitted().size(), 4u);
}

TEST_F(FleetHttp, TheLoadIsToldOnRequest) {
  Start();
  const std::string body = R"({"model":"base","prompt":"p"})";
  EXPECT_EQ(Post(body).Header("endpoint-load-metrics"), "");
  EXPECT_THAT(Post(body, "endpoint-load-metrics-format: TEXT\r\n").Header("endpoint-load-metrics"),
              StartsWith("TEXT application_utilization="));
  EXPECT_THAT(Post(R"({"model":"base","prompt":"p","stream":true})", "endpoint-load-metrics-format: JSON\r\n")
                  .Header("endpoint-load-metrics"),
              StartsWith(R"(JSON {"application_utilization":)"));
}

TEST_F(FleetHttp, WhatIsOfferedIsToldOnceToEachRouter) {
  Start();
  EXPECT_TRUE(Poll().offered.empty());  // it was not asked for
  const ServerSnapshot first = Poll("?offered=0");
  EXPECT_GT(first.offered_version, 0u);
  EXPECT_EQ(first.offered.size(), 2u);
  for (const char* name : {"base", "sql"}) {
    EXPECT_TRUE(std::ranges::binary_search(first.offered, NameFingerprint(name))) << name;
  }
  const std::string known = "&offered=" + std::to_string(first.offered_version);
  const ServerSnapshot same = Poll(After(first, 0) + known);
  EXPECT_EQ(same.offered_version, first.offered_version);
  EXPECT_TRUE(same.offered.empty());
  auto adapter = std::make_shared<AdapterVersion>();
  adapter->name = "law";  // no request has asked for it
  adapter->path = "adapters/law";
  ASSERT_TRUE(fixture_.registry.Commit(std::move(adapter)).ok());
  const ServerSnapshot more = Poll(After(first, 30000) + known);
  EXPECT_EQ(more.version, first.version + 1);
  EXPECT_NE(more.offered_version, first.offered_version);
  EXPECT_TRUE(std::ranges::binary_search(more.offered, NameFingerprint("law")));
}

TEST_F(FleetHttp, PromptsAreRememberedWhileARouterPolls) {
  Start();
  const std::string text(3 * kPrefixBlockBytes, 'x');
  const std::string prompt = R"({"model":"sql","prompt":")" + text + "\"}";
  EXPECT_EQ(Post(prompt).status, 200);
  const ServerSnapshot first = Poll();
  EXPECT_TRUE(first.prefixes.empty()) << "nobody had asked";
  EXPECT_EQ(Post(prompt).status, 200);
  EXPECT_EQ(Post(R"({"model":"base","prompt":")" + text + "\",\"max_tokens\":-1}").status, 400);
  const ServerSnapshot second = Poll(After(first, 30000));
  EXPECT_EQ(second.prefixes.size(), 3u);
  for (const std::uint32_t block : PrefixBlocks("sql", text)) EXPECT_TRUE(second.HasPrefix(block));
  Change([](EngineSnapshot& state) {  // 5 pages of 16 tokens are left: one block of 64
    state.stats.device.used_pages[static_cast<std::size_t>(PageCategory::kKv)] = 5;
  });
  const ServerSnapshot third = Poll(After(second, 30000));
  EXPECT_EQ(third.prefixes, std::vector<std::uint32_t>{PrefixBlocks("sql", text)[0]});
}

}  // namespace
}  // namespace loramux::fleet_http_test
