// The client, the mirror, leases, members and the catalogue with a real etcd, and the client with servers that
// misbehave.
#include <atomic>
#include <filesystem>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/must.h"
#include "base/text_file.h"
#include "base/wait_until_for_test.h"
#include "etcd/catalogue.h"
#include "etcd/etcd_client.h"
#include "etcd/etcd_for_test.h"
#include "etcd/etcd_mirror.h"
#include "etcd/leased_keys.h"
#include "etcd/membership.h"
#include "http/exchange.h"
#include "http/raw_client_for_test.h"
#include "http/server.h"

namespace loramux::etcd_test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
namespace asio = boost::asio;

// ---- with a real etcd ----

class EtcdTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (EtcdForTest::Exists()) etcd_ = new EtcdForTest;
  }
  static void TearDownTestSuite() {
    delete etcd_;
    etcd_ = nullptr;
  }
  void SetUp() override {
    if (etcd_ == nullptr) GTEST_SKIP() << "SKIPPED: there is no program etcd; tools/setup.sh test installs it";
    client_ = Must(EtcdClient::Open(etcd_->Options(), clock_));
    for (const char* prefix : {"/loramux/v1/", "t/"}) {
      const auto all = client_->ReadPrefix(prefix, false);
      ASSERT_TRUE(all.ok()) << all.error().message;
      for (const EtcdKeyValue& item : all->key_values) {
        if (item.key != kHistoryKey) ASSERT_TRUE(client_->Delete(item.key).ok());
      }
    }
  }
  std::optional<EtcdKeyValue> Get(const std::string& key) {
    const auto reply = client_->Range({.key = key});
    EXPECT_TRUE(reply.ok()) << reply.error().message;
    if (reply->key_values.empty()) return std::nullopt;
    return reply->key_values.front();
  }
  void Compact() {
    const auto now = client_->Range({.key = "x"});
    RawHttpClient raw(static_cast<std::uint16_t>(etcd_->port()));
    ASSERT_TRUE(raw.Send(RawHttpClient::Format("POST", "/v3/kv/compaction",
                                               "{\"revision\":\"" + std::to_string(now->header.revision) + "\"}")));
    ASSERT_EQ(raw.Read().status, 200);
  }

  static inline EtcdForTest* etcd_ = nullptr;
  OsClock clock_;
  std::unique_ptr<EtcdClient> client_;
};

// A mirror's states, as another thread sees them.
class Seen {
 public:
  EtcdMirror::OnChange Take() {
    return [this](const EtcdMirrorState& state) {
      const std::lock_guard lock(mutex_);
      state_ = state;
    };
  }
  EtcdMirrorState state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  std::string Value(const std::string& key) const {
    const EtcdMirrorState now = state();
    const auto found = now.values.find(key);
    return found == now.values.end() ? "none" : found->second.value;
  }
  bool Becomes(const std::string& key, const std::string& value) const {
    return WaitUntil([&] { return Value(key) == value; });
  }

 private:
  mutable std::mutex mutex_;
  EtcdMirrorState state_;
};

TEST_F(EtcdTest, PutRangeDelete) {
  const std::string binary("\0\xff\n\"", 4);
  ASSERT_TRUE(client_->Put("t/a", binary).ok());
  EXPECT_EQ(Get("t/a")->value, binary);
  ASSERT_TRUE(client_->Put("t/b", "").ok());
  EXPECT_EQ(client_->ReadPrefix("t/", true)->key_values.size(), 2u);
  ASSERT_TRUE(client_->Delete("t/a").ok());
  ASSERT_TRUE(client_->Delete("t/a").ok());
  EXPECT_EQ(Get("t/a"), std::nullopt);
  EXPECT_EQ(client_->Put("", "x").error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(client_->Put("", "x").error().message, HasSubstr("key is not provided"));
}

TEST_F(EtcdTest, LongListsComeInPagesOfOneRevision) {
  const auto lease = client_->Grant(600);
  ASSERT_TRUE(lease.ok());
  for (int i = 0; i < 502; ++i) ASSERT_TRUE(client_->Put(fmt::format("t/{:04}", i), "v", lease->id).ok());
  const auto all = client_->ReadPrefix("t/", false);
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(all->key_values.size(), 502u);
  EXPECT_EQ(all->key_values[501].key, "t/0501");
  ASSERT_TRUE(client_->Revoke(lease->id).ok());
  EXPECT_TRUE(client_->ReadPrefix("t/", false)->key_values.empty());
}

TEST_F(EtcdTest, CompareAndSwap) {
  auto made = client_->CompareAndSwap({.key = "t/a", .value = "1"});
  ASSERT_TRUE(made.ok() && made->swapped);
  auto again = client_->CompareAndSwap({.key = "t/a", .value = "2"});
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->swapped);
  EXPECT_EQ(again->current->value, "1");
  EXPECT_TRUE(client_->CompareAndSwap({.key = "t/a", .value = "1"})->swapped);  // its own, repeated
  const std::int64_t revision = again->current->mod_revision;
  EXPECT_TRUE(client_->CompareAndSwap({.key = "t/a", .mod_revision = revision, .value = "2"})->swapped);
  EXPECT_FALSE(client_->CompareAndSwap({.key = "t/a", .mod_revision = revision})->swapped);
  EXPECT_TRUE(client_->CompareAndSwap({.key = "t/a", .mod_revision = Get("t/a")->mod_revision})->swapped);
  EXPECT_EQ(Get("t/a"), std::nullopt);
}

TEST_F(EtcdTest, LeasesExpireUnlessTheyAreKeptAlive) {
  const auto lease = client_->Grant(2);
  ASSERT_TRUE(lease.ok()) << lease.error().message;
  ASSERT_TRUE(client_->Put("t/a", "v", lease->id).ok());
  EXPECT_GT(*client_->KeepAlive(lease->id), 0);
  EXPECT_TRUE(WaitUntil([&] { return !Get("t/a"); }));
  EXPECT_EQ(client_->KeepAlive(lease->id).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(client_->Put("t/a", "v", lease->id).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(client_->Revoke(lease->id).ok());
}

TEST_F(EtcdTest, LeasedKeysStandUntilTheyAreWithdrawn) {
  LeasedKeys keys(*client_, clock_, {.ttl_seconds = 2});
  keys.Set("t/a", "1");
  keys.Set("t/b", "1");
  ASSERT_TRUE(WaitUntil([&] { return Get("t/a") && Get("t/b"); }));
  keys.Set("t/a", "2");
  keys.Set("t/b", std::nullopt);
  ASSERT_TRUE(WaitUntil([&] { return Get("t/a")->value == "2" && !Get("t/b"); }));
  std::this_thread::sleep_for(4s);  // two times to live
  EXPECT_EQ(Get("t/a")->value, "2");
  EXPECT_EQ(keys.leases(), 1);
  EXPECT_TRUE(keys.complete());
  ASSERT_TRUE(client_->Revoke(Get("t/a")->lease).ok());  // as if the process had stood still
  EXPECT_TRUE(WaitUntil([&] { return Get("t/a").has_value(); }));
  EXPECT_EQ(keys.leases(), 2);
  ASSERT_TRUE(keys.Withdraw().ok());
  EXPECT_FALSE(Get("t/a"));
  keys.Set("t/a", "3");
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(Get("t/a"));
}

TEST_F(EtcdTest, AMirrorFollowsAndGoesOnWhereItsWatchBrokeOff) {
  ASSERT_TRUE(client_->Put("t/a", "1").ok());
  Seen seen;
  EtcdMirror mirror(*client_, "t/", "the test", seen.Take());
  ASSERT_TRUE(mirror.WaitUntilRead(120s));
  EXPECT_EQ(seen.Value("a"), "1");
  ASSERT_TRUE(client_->Put("t/b", "1").ok());
  EXPECT_TRUE(seen.Becomes("b", "1"));
  ASSERT_TRUE(client_->Delete("t/a").ok());
  EXPECT_TRUE(seen.Becomes("a", "none"));
  etcd_->Kill();
  EXPECT_TRUE(WaitUntil([&] { return !mirror.in_touch(); }));
  EXPECT_EQ(seen.Value("b"), "1");
  etcd_->Start();
  ASSERT_TRUE(client_->Put("t/b", "2").ok());
  EXPECT_TRUE(seen.Becomes("b", "2"));
  EXPECT_EQ(mirror.reads(), 1);  // resumed, not read again
  EXPECT_EQ(seen.state().epoch, 1u);
}

TEST_F(EtcdTest, AWatchThatTimeEndsIsResumed) {
  EtcdOptions options = etcd_->Options();
  options.watch_time = 50ms;
  const auto opened = Must(EtcdClient::Open(options, clock_));
  EtcdClient& client = *opened;
  Seen seen;
  EtcdMirror mirror(client, "t/", "the test", seen.Take());
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(client_->Put("t/a", std::to_string(i)).ok());
    EXPECT_TRUE(seen.Becomes("a", std::to_string(i)));
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_EQ(mirror.reads(), 1);
  client.Stop();
}

TEST_F(EtcdTest, CompactedChangesAreReadAsAWhole) {
  EtcdOptions options = etcd_->Options();
  Seen seen;
  ASSERT_TRUE(client_->Put("t/a", "1").ok());
  EtcdMirror mirror(*client_, "t/", "the test", seen.Take());
  ASSERT_TRUE(mirror.WaitUntilRead(120s));
  etcd_->Kill();
  EXPECT_TRUE(WaitUntil([&] { return !mirror.in_touch(); }));
  {
    // Changes and compacts before the mirror is back: its own client is stopped meanwhile by the dead port.
    etcd_->Start();
    ASSERT_TRUE(client_->Put("t/a", "2").ok());
    ASSERT_TRUE(client_->Delete("t/a").ok());
    ASSERT_TRUE(client_->Put("t/c", "3").ok());
    Compact();
  }
  EXPECT_TRUE(seen.Becomes("c", "3"));
  EXPECT_TRUE(seen.Becomes("a", "none"));
  const auto end = client_->Watch("t/", 1, [](auto, auto) {}, {});
  EXPECT_EQ(end.kind, EtcdWatchEnd::Kind::kCompacted);
}

TEST_F(EtcdTest, AStoreThatLostItsDataIsAnotherEpoch) {
  ASSERT_TRUE(client_->Put("t/a", "1").ok());
  Seen seen;
  EtcdMirror mirror(*client_, "t/", "the test", seen.Take());
  ASSERT_TRUE(mirror.WaitUntilRead(120s));
  etcd_->Wipe();
  ASSERT_TRUE(client_->Put("t/b", "1").ok());
  EXPECT_TRUE(seen.Becomes("b", "1"));
  EXPECT_EQ(seen.state().epoch, 2u);
  EXPECT_EQ(seen.Value("a"), "none");
}

TEST_F(EtcdTest, AWatchCanBeStopped) {
  std::stop_source stop;
  std::atomic<bool> began = false;
  std::thread stopper([&] {
    WaitUntil([&] { return began.load(); });
    stop.request_stop();
  });
  const auto end = client_->Watch(
      "t/", 0, [&](auto, auto) { began = true; }, stop.get_token());
  EXPECT_EQ(end.kind, EtcdWatchEnd::Kind::kStopped);
  stopper.join();
}

TEST_F(EtcdTest, MembersComeGoAndKeepTheirIds) {
  std::mutex mutex;
  std::vector<Member> members;
  const auto now = [&] {
    const std::lock_guard lock(mutex);
    return members;
  };
  const auto follower = FollowMembers(*client_, [&](std::vector<Member> list) {
    const std::lock_guard lock(mutex);
    members = std::move(list);
  });
  const Member one{"one", "127.0.0.1:8001", "i1", "demo", 1}, again{"one", "127.0.0.1:8001", "i2", "demo", 2},
      other{"one", "127.0.0.1:8002", "i3", "demo", 1};
  auto keys = std::make_unique<LeasedKeys>(*client_, clock_, MemberKeysOptions(one));
  Register(*keys, one);
  EXPECT_TRUE(WaitUntil([&] { return now() == std::vector{one}; }));
  // A restarted server takes its id over; another server waits until it is free.
  LeasedKeys restarted(*client_, clock_, MemberKeysOptions(again)),
      intruder(*client_, clock_, MemberKeysOptions(other));
  Register(restarted, again);
  EXPECT_TRUE(WaitUntil([&] { return now() == std::vector{again}; }));
  Register(intruder, other);
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(now(), std::vector{again});
  EXPECT_FALSE(intruder.complete());
  ASSERT_TRUE(client_->Put(std::string(kServersPrefix) + "broken", "{}").ok());
  ASSERT_TRUE(restarted.Withdraw().ok());
  EXPECT_TRUE(WaitUntil([&] { return now() == std::vector{other}; }));
  client_->Stop();
}

TEST_F(EtcdTest, TheCatalogueIsChangedByOneAtATime) {
  std::mutex mutex;
  FleetCatalogue latest;
  const auto follower = FollowCatalogue(*client_, [&](FleetCatalogue catalogue) {
    const std::lock_guard lock(mutex);
    latest = std::move(catalogue);
  });
  const auto seen = ReadCatalogue(*client_, "a/b");
  ASSERT_TRUE(seen.ok());
  const auto first = WriteCatalogue(*client_, "a/b", {.source = "/x", .digest = "d", .pinned = true}, *seen);
  ASSERT_TRUE(first.ok());
  const auto second = WriteCatalogue(*client_, "a/b", {.source = "/y"}, *seen);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(WaitUntil([&] {
    const std::lock_guard lock(mutex);
    return latest.entries.contains("a/b") && latest.entries["a/b"] == *first->entry;
  }));
  ASSERT_FALSE(RemoveFromCatalogue(*client_, "a/b", *seen).ok());
  ASSERT_TRUE(RemoveFromCatalogue(*client_, "a/b", *ReadCatalogue(*client_, "a/b")).ok());
  const auto third = WriteCatalogue(*client_, "a/b", {.source = "/z"}, *ReadCatalogue(*client_, "a/b"));
  EXPECT_GT(third->entry->generation, first->entry->generation);  // also over the deletion
  ASSERT_TRUE(client_->Put(std::string(kAdaptersPrefix) + "bad", "{\"source\":7}").ok());
  EXPECT_TRUE(WaitUntil([&] {
    const std::lock_guard lock(mutex);
    return latest.broken.contains("bad") && latest.entries.size() == 1;
  }));
  client_->Stop();
}

TEST_F(EtcdTest, ADeadEndpointIsPassedOver) {
  EtcdOptions options = etcd_->Options();
  {
    const auto free = BoundPort::Bind("127.0.0.1", 0);
    options.urls.insert(options.urls.begin(), "http://127.0.0.1:" + std::to_string((*free)->port()));
  }
  options.urls.push_back("http://no-such-host.invalid:1");
  const auto opened = Must(EtcdClient::Open(options, clock_));
  EtcdClient& client = *opened;
  EXPECT_TRUE(client.Put("t/a", "1").ok());
  Seen seen;
  EtcdMirror mirror(client, "t/", "the test", seen.Take());
  EXPECT_TRUE(seen.Becomes("a", "1"));
  client.Stop();
}

// ---- with servers that misbehave ----

class HostileTest : public testing::Test {
 protected:
  // Answers each call with `reply`.
  void Answer(int status, std::string body) {
    for (const char* path : {"/v3/kv/range", "/v3/kv/put", "/v3/watch"}) {
      routes_.AddSimple("POST", path, [=](const HttpRequest&) { return HttpReply{status, body}; });
    }
    Start();
  }
  void Start(EtcdOptions options = {}) {
    HttpServerOptions http{.port = 0};
    http.linger_timeout = 50ms;
    http.drain_timeout = 10ms;
    server_ = std::make_unique<HttpServer>(http, routes_, clock_);
    ASSERT_TRUE(server_->Start().ok());
    options.urls = {"http://127.0.0.1:" + std::to_string(server_->port())};
    options.timeout = 300ms;
    client_ = Must(EtcdClient::Open(options, clock_));
  }

  OsClock clock_;
  RouteTable routes_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<EtcdClient> client_;
};

TEST_F(HostileTest, ARefusalIsNotRepeated) {
  Answer(400, R"({"error":"etcdserver: too many operations","code":3})");
  const auto reply = client_->Range({.key = "k"});
  EXPECT_EQ(reply.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(reply.error().message, HasSubstr("too many operations"));
}

TEST_F(HostileTest, WithoutAQuorumTheCallFailsAndSaysWhy) {
  Answer(503, R"({"error":"etcdserver: request timed out","code":14})");
  const auto reply = client_->Put("k", "v");
  EXPECT_EQ(reply.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(reply.error().message, HasSubstr("request timed out"));
  EXPECT_THAT(reply.error().message, HasSubstr("without a quorum"));
  EXPECT_THAT(reply.error().message, HasSubstr(std::to_string(server_->port())));
}

TEST_F(HostileTest, AnotherServersPageIsNoReply) {
  Answer(200, "<html>hello</html>");
  EXPECT_THAT(client_->Range({.key = "k"}).error().message, HasSubstr("is this URL an etcd server?"));
  const auto end = client_->Watch("k", 1, [](auto, auto) { FAIL(); }, {});
  EXPECT_EQ(end.kind, EtcdWatchEnd::Kind::kBroken);
}

TEST_F(HostileTest, PagesThatNeverEndAreRefused) {
  Answer(200, R"({"header":{"revision":"5"},"more":true})");
  EXPECT_EQ(client_->ReadPrefix("k", false).error().code, ErrorCode::kUnavailable);
}

TEST_F(HostileTest, AReplyWithoutEndIsCut) {
  for (const char* path : {"/v3/kv/range", "/v3/watch"}) {
    routes_.Add("POST", path, [](HttpExchange& exchange) -> asio::awaitable<void> {
      const std::string piece(1 << 20, 'x');
      bool alive = co_await exchange.StartStream("application/json");
      while (alive) alive = co_await exchange.Write(piece);
    });
  }
  Start();
  EXPECT_EQ(client_->Range({.key = "k"}).error().code, ErrorCode::kUnavailable);
  const auto end = client_->Watch("k", 1, [](auto, auto) { FAIL(); }, {});
  EXPECT_EQ(end.kind, EtcdWatchEnd::Kind::kBroken);
  EXPECT_THAT(end.error.message, HasSubstr("too long"));
}

TEST_F(HostileTest, ASilentServerIsLeftAfterTheTimeout) {
  std::atomic<bool> stop = false;
  routes_.Add("POST", "/v3/kv/range", [&](HttpExchange& exchange) -> asio::awaitable<void> {
    co_await exchange.StartStream("application/json");
    while (!stop && !exchange.disconnected()) {
      asio::steady_timer timer(exchange.executor(), 1ms);
      co_await timer.async_wait(asio::use_awaitable);
    }
  });
  Start();
  const TimeNs before = clock_.Now();
  const auto reply = client_->Range({.key = "k"});
  EXPECT_EQ(reply.error().code, ErrorCode::kUnavailable);
  EXPECT_GE(clock_.Now() - before, 290 * kNsPerMs);
  stop = true;
  server_.reset();  // its handlers use what is here
}

TEST_F(HostileTest, AnOldMembersWatchIsNotBelieved) {
  Answer(200, "{\"result\":{\"header\":{\"revision\":\"7\"},\"created\":true}}\n");
  EXPECT_EQ(client_->Watch("k", 9, [](auto, auto) { FAIL(); }, {}).kind, EtcdWatchEnd::Kind::kBehind);
  std::int64_t came_to = 0;
  const auto end = client_->Watch("k", 8, [&](auto, std::int64_t revision) { came_to = revision; }, {});
  EXPECT_EQ(end.kind, EtcdWatchEnd::Kind::kBroken);  // it ended
  EXPECT_EQ(came_to, 7);
}

TEST_F(HostileTest, AMirrorGoesNeitherBackNorEmpty) {
  std::atomic<int> revision = 10;
  routes_.AddSimple("POST", "/v3/kv/range", [&](const HttpRequest& request) {
    const bool history = request.body.find(ToBase64(kHistoryKey)) != std::string::npos;
    const bool serializable = request.body.find("serializable") != std::string::npos;
    const int now = serializable ? revision.load() : 10;
    return HttpReply{200, "{\"header\":{\"revision\":\"" + std::to_string(now) + "\"},\"kvs\":[{\"key\":\"" +
                              ToBase64(history ? kHistoryKey : "t/a") + "\",\"value\":\"" +
                              ToBase64(history ? "h" : std::to_string(now)) + "\",\"mod_revision\":\"3\"}]}"};
  });
  std::atomic<int> watches = 0;
  routes_.AddSimple("POST", "/v3/watch", [&](const HttpRequest&) {
    ++watches;
    revision = 4;  // from now on an old member answers
    return HttpReply{200, "{\"result\":{\"header\":{\"revision\":\"4\"},\"created\":true}}\n"};
  });
  Start();
  Seen seen;
  EtcdMirror mirror(*client_, "t/", "the test", seen.Take());
  EXPECT_TRUE(WaitUntil([&] { return watches >= 3; }));
  EXPECT_EQ(seen.Value("a"), "10");
  EXPECT_EQ(seen.state().epoch, 1u);
  client_->Stop();
  server_.reset();  // its handlers use what is here
}

TEST_F(HostileTest, AMirrorReadsAnewWhatWasCompacted) {
  std::atomic<int> watches = 0, reads = 0;
  routes_.AddSimple("POST", "/v3/kv/range", [&](const HttpRequest& request) {
    const bool history = request.body.find(ToBase64(kHistoryKey)) != std::string::npos;
    if (!history) ++reads;
    return HttpReply{200, "{\"header\":{\"revision\":\"10\"},\"kvs\":[{\"key\":\"" +
                              ToBase64(history ? kHistoryKey : "t/a") + "\",\"value\":\"" +
                              ToBase64(history ? "h" : std::to_string(reads)) + "\",\"mod_revision\":\"3\"}]}"};
  });
  routes_.AddSimple("POST", "/v3/watch", [&](const HttpRequest&) {
    const bool compacted = ++watches == 1;
    return HttpReply{200, compacted ? "{\"result\":{\"header\":{},\"canceled\":true,\"compact_revision\":\"12\"}}\n"
                                    : "{\"result\":{\"header\":{\"revision\":\"10\"},\"created\":true}}\n"};
  });
  Start();
  Seen seen;
  EtcdMirror mirror(*client_, "t/", "the test", seen.Take());
  EXPECT_TRUE(seen.Becomes("a", "2"));
  EXPECT_TRUE(WaitUntil([&] { return watches >= 3; }));
  EXPECT_EQ(mirror.reads(), 2);
  client_->Stop();
  server_.reset();  // its handlers use what is here
}

TEST_F(HostileTest, ATokenIsTakenAndRenewed) {
  std::atomic<int> logins = 0;
  routes_.AddSimple("POST", "/v3/auth/authenticate", [&](const HttpRequest& request) {
    EXPECT_EQ(request.body, R"({"name":"u","password":"p"})");
    return HttpReply{200, "{\"header\":{},\"token\":\"t" + std::to_string(++logins) + "\"}"};
  });
  std::atomic<int> valid = 1;
  routes_.AddSimple("POST", "/v3/kv/range", [&](const HttpRequest& request) {
    if (request.Header("Authorization") == "t" + std::to_string(valid)) {
      return HttpReply{200, R"({"header":{"revision":"5"}})"};
    }
    return HttpReply{401, R"({"error":"etcdserver: invalid auth token","code":16})"};
  });
  const std::string password = testing::TempDir() + "loramux_etcd_password";
  ASSERT_TRUE(WriteTextFile(password, "p\nwhat follows is none\n").ok());
  Start({.user = "u", .password_file = password});
  std::filesystem::remove(password);
  EXPECT_TRUE(client_->Range({.key = "k"}).ok());
  EXPECT_TRUE(client_->Range({.key = "k"}).ok());
  EXPECT_EQ(logins, 1);
  valid = 2;
  EXPECT_TRUE(client_->Range({.key = "k"}).ok());
  EXPECT_EQ(logins, 2);
  valid = 9;
  EXPECT_THAT(client_->Range({.key = "k"}).error().message, HasSubstr("--etcd-user"));
}

TEST_F(HostileTest, StoppedClientsAnswerAtOnce) {
  Answer(200, "{}");
  client_->Stop();
  EXPECT_EQ(client_->Range({.key = "k"}).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(client_->Watch("k", 1, [](auto, auto) {}, {}).kind, EtcdWatchEnd::Kind::kStopped);
}

}  // namespace
}  // namespace loramux::etcd_test
