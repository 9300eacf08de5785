#include "cluster/dispatcher.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/must.h"
#include "base/prng.h"
#include "cluster/default_model.h"
#include "cluster/offered_names.h"
#include "cluster/retry_budget.h"
#include "cluster/session_servers.h"

namespace loramux::dispatcher_test {
namespace {

constexpr TimeNs kSecond = kNsPerSecond;

std::unique_ptr<Dispatcher> Make(DispatcherOptions options) {
  options.model = DefaultPerformanceModel();
  return Must(Dispatcher::Create(std::move(options)));
}

std::vector<std::string> Names(int servers) {
  std::vector<std::string> names;
  for (int s = 0; s < servers; ++s) names.push_back("server-" + std::to_string(s) + ":8000");
  return names;
}

ServerSnapshot SnapshotWith(std::int64_t running, std::uint64_t version = 1, std::string instance = "first") {
  return {.instance = std::move(instance), .version = version, .running = running, .max_running = 256};
}

RouteRequest RequestFor(std::string adapter = "") {
  return {.adapter = std::move(adapter), .prompt_tokens = 100, .output_tokens = 50};
}

Dispatcher::ServerState StateOf(const Dispatcher& dispatcher, std::string_view name, TimeNs now) {
  for (const Dispatcher::ServerState& state : dispatcher.States(now)) {
    if (state.name == name) return state;
  }
  CHECK(false);
}

TEST(Dispatcher, RefusesAnUnknownPolicy) {
  const auto made = Dispatcher::Create({.policy = "nearest", .model = DefaultPerformanceModel()});
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message.find("found 'nearest'"), std::string::npos);
}

TEST(Dispatcher, SaysWhyNoServerTakesRequests) {
  const auto dispatcher = Make({.most_ejected = 1});
  EXPECT_NE(dispatcher->Send(RequestFor(), 0).error().message.find("the list of servers is empty"), std::string::npos);
  const std::vector<std::string> names = {"a", "b", "c"};
  dispatcher->SetServers(names, 0);
  ServerSnapshot drains = SnapshotWith(0);
  drains.draining = true;
  dispatcher->Observe("a", drains, 0);
  for (int i = 0; i < 3; ++i) dispatcher->ObserveProbe("b", false, 0);
  const std::vector<std::string> tried = {"c"};
  const auto refused = dispatcher->Send(RequestFor(), kSecond, tried);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(refused.error().message,
            "no server takes requests now (a: draining; b: ejected after connection errors, for 9.0 s more; c: tried); "
            "try again later");
}

TEST(Dispatcher, OnlyServersThatMayHaveTheContent) {
  const auto dispatcher = Make({});
  const std::vector<std::string> names = {"a", "b"};
  dispatcher->SetServers(names, 0);
  const auto with = [](const char* digest) {
    ServerSnapshot snapshot = SnapshotWith(0);
    snapshot.adapters = {{.name = "x", .digest = digest, .place = AdapterPlace::kDevice, .rank = 8, .bytes = 1000}};
    return snapshot;
  };
  dispatcher->Observe("a", with("old"), 0);
  dispatcher->Observe("b", with("new"), 0);
  RouteRequest request = RequestFor("x");
  for (const auto& [digest, server] : std::map<std::string, std::string>{{"old", "a"}, {"new", "b"}}) {
    request.digest = digest;
    for (int i = 0; i < 10; ++i) EXPECT_EQ(Must(dispatcher->Send(request, 1)).server, server);
  }
  request.digest = "newest";
  const auto refused = dispatcher->Send(request, 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNotFound);
  EXPECT_NE(refused.error().message.find("a: old; b: new"), std::string::npos) << refused.error().message;
}

// The servers that get one of many requests for the adapter.
std::set<std::string> UsedFor(Dispatcher& dispatcher, const std::string& adapter, TimeNs now,
                              std::span<const std::string> tried = {}) {
  std::set<std::string> used;
  for (int i = 0; i < 100; ++i) used.insert(Must(dispatcher.Send(RequestFor(adapter), now, tried)).server);
  return used;
}

ServerSnapshot Offers(std::vector<std::string_view> names, std::uint64_t version = 1) {
  ServerSnapshot snapshot = SnapshotWith(0, version);
  SetOffered(names, snapshot);
  return snapshot;
}

using Set = std::set<std::string>;

TEST(Dispatcher, KeepsToServersThatOfferTheAdapter) {
  const auto dispatcher = Make({.policy = "random", .retry_budget = 1});
  const std::vector<std::string> names = {"a", "b", "c"};
  dispatcher->SetServers(names, 0);
  dispatcher->Observe("a", Offers({"base", "sql"}), 0);
  dispatcher->Observe("b", Offers({"base", "sql", "law"}), 0);
  EXPECT_EQ(UsedFor(*dispatcher, "law", 1), (Set{"b", "c"}));  // c does not say
  dispatcher->Observe("c", Offers({"base"}), 0);
  EXPECT_EQ(UsedFor(*dispatcher, "law", 1), (Set{"b"}));
  EXPECT_EQ(UsedFor(*dispatcher, "sql", 1), (Set{"a", "b"}));
  EXPECT_EQ(UsedFor(*dispatcher, "", 1), (Set{"a", "b", "c"}));
  EXPECT_EQ(UsedFor(*dispatcher, "new", 1), (Set{"a", "b", "c"}));  // it may have come just now
  // The version alone says that nothing has changed, also if the snapshot has grown too old meanwhile.
  ServerSnapshot again = Offers({"base", "sql", "law"}, 2);
  again.offered.clear();
  EXPECT_EQ(UsedFor(*dispatcher, "law", 60 * kSecond), (Set{"b"}));
  dispatcher->Observe("b", again, 60 * kSecond);
  EXPECT_EQ(UsedFor(*dispatcher, "law", 60 * kSecond), (Set{"b"}));
  const std::vector<std::string> tried = {"b"};
  EXPECT_EQ(dispatcher->Send(RequestFor("law"), 60 * kSecond, tried).error().message,
            "no server takes requests now (a: does not offer 'law'; b: tried; c: does not offer 'law'); "
            "try again later");
  dispatcher->Observe("b", Offers({"base", "sql"}, 3), 60 * kSecond);  // unloaded
  EXPECT_EQ(UsedFor(*dispatcher, "law", 60 * kSecond), (Set{"a", "b", "c"}));
}

TEST(Dispatcher, AListOfModelsIsAHintAlone) {
  const auto dispatcher = Make({.policy = "random"});
  const std::vector<std::string> names = {"a", "b"};
  dispatcher->SetServers(names, 0);
  dispatcher->ObserveModels("a", {NameFingerprint("law"), NameFingerprint("base"), NameFingerprint("law")});
  dispatcher->ObserveModels("b", {NameFingerprint("base")});
  EXPECT_EQ(UsedFor(*dispatcher, "law", 1), (Set{"a"}));
  const std::vector<std::string> tried = {"a"};
  EXPECT_EQ(UsedFor(*dispatcher, "law", 1, tried), (Set{"b"}));  // it may find the adapter
  dispatcher->ObserveModels("a", {});
  EXPECT_EQ(UsedFor(*dispatcher, "law", 1), (Set{"a", "b"}));
}

TEST(OfferedNames, TooManyAreNotTold) {
  const std::vector<std::string_view> names(kMaxOffered + 1, "x");
  ServerSnapshot snapshot = Offers({"base"});
  SetOffered(names, snapshot);
  EXPECT_EQ(snapshot.offered_version, 0u);
  EXPECT_TRUE(snapshot.offered.empty());
  OfferedNames offered;
  offered.TakeList(std::vector<std::uint64_t>(kMaxOffered + 1));
  EXPECT_EQ(offered.Offers(0), OfferedNames::Answer::kUnknown);
}

TEST(Dispatcher, AnotherProgramAtAnAddressDoesNotDrain) {
  const auto dispatcher = Make({.policy = "random", .most_ejected = 1});
  const std::vector<std::string> names = {"a"};
  dispatcher->SetServers(names, 0);
  ServerSnapshot drains = Offers({"base"});
  drains.draining = true;
  dispatcher->Observe("a", drains, 0);
  for (int i = 0; i < 3; ++i) dispatcher->ObserveProbe("a", false, 0);
  EXPECT_FALSE(dispatcher->Send(RequestFor(), kSecond).ok());
  dispatcher->ObserveForeign("a", kSecond);
  EXPECT_TRUE(dispatcher->Send(RequestFor(), kSecond).ok());
  EXPECT_EQ(dispatcher->SnapshotOf("a"), nullptr);
  EXPECT_FALSE(StateOf(*dispatcher, "a", kSecond).draining);
  EXPECT_NEAR(StateOf(*dispatcher, "a", kSecond).share, 0.1, 1e-9);
  // A server that never had snapshots keeps what is held against it.
  for (int i = 0; i < 3; ++i) dispatcher->ObserveProbe("a", false, 2 * kSecond);
  dispatcher->ObserveForeign("a", 2 * kSecond);
  EXPECT_TRUE(StateOf(*dispatcher, "a", 2 * kSecond).ejected);
}

// Servers without snapshots are known by this router's own requests alone, of which there may be thousands.
TEST(Dispatcher, CountsManyOwnRequestsWhateverTheirOrder) {
  const auto dispatcher = Make({.policy = "most-idle"});
  dispatcher->SetServers(Names(2), 0);
  std::map<std::string, std::vector<Dispatcher::Attempt>> open;
  const auto send = [&] {
    const Dispatcher::Decision decision = Must(dispatcher->Send(RequestFor("x"), 1));
    open[decision.server].push_back(decision.attempt);
  };
  for (int i = 0; i < 600; ++i) send();
  EXPECT_EQ(open[Names(2)[0]].size(), 300u);
  for (auto& [name, attempts] : open) {
    for (const Dispatcher::Attempt attempt : attempts) dispatcher->Answered(attempt, 2);
  }
  std::vector<Dispatcher::Attempt>& first = open[Names(2)[0]];
  for (int i = 0; i < 250; ++i) {  // from the middle
    dispatcher->End(first[first.size() / 2], AttemptEnd::kAnswered, 3);
    first.erase(first.begin() + static_cast<std::ptrdiff_t>(first.size() / 2));
  }
  EXPECT_EQ(StateOf(*dispatcher, Names(2)[0], 3).in_flight, 50);
  for (int i = 0; i < 250; ++i) send();
  EXPECT_EQ(first.size(), 300u);
  EXPECT_EQ(open[Names(2)[1]].size(), 300u);
}

TEST(Dispatcher, AServerThatErrsAgainAndAgainIsTriedNowAndThen) {
  const auto dispatcher = Make({.policy = "random", .health = {.slow_start = 0}, .most_ejected = 1});
  const std::vector<std::string> names = {"bad", "good"};
  dispatcher->SetServers(names, 0);
  int at_bad = 0;
  const auto ask = [&](TimeNs now) {
    const Dispatcher::Decision decision = Must(dispatcher->Send(RequestFor(), now));
    at_bad += decision.server == "bad";
    dispatcher->End(decision.attempt, EndWithStatus(decision.server == "bad" ? 500 : 200), now);
  };
  for (int second = 0; second < 600; ++second) {
    for (int i = 0; i < 10; ++i) ask(second * kSecond);
  }
  EXPECT_GE(at_bad, 5 + 7);  // five, then one after 10, 20, 40, 80, 100, 100 ... seconds
  EXPECT_LE(at_bad, 5 + 9);
  EXPECT_EQ(StateOf(*dispatcher, "bad", 600 * kSecond).ejections, at_bad - 4);
  // The last server goes on to get all.
  dispatcher->SetServers(std::vector<std::string>{"bad"}, 600 * kSecond);
  for (int i = 0; i < 100; ++i) ask(1000 * kSecond);
  EXPECT_FALSE(StateOf(*dispatcher, "bad", 1000 * kSecond).ejected);
}

TEST(Dispatcher, AServerThatBeginsNothingGetsNothingForAWhile) {
  const auto dispatcher = Make({.policy = "random", .most_ejected = 1});
  const std::vector<std::string> names = {"bad", "good"}, good = {"good"};
  dispatcher->SetServers(names, 0);
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(StateOf(*dispatcher, "bad", 0).ejected);
    dispatcher->End(Must(dispatcher->Send(RequestFor(), 0, good)).attempt, AttemptEnd::kNotStarted, 0);
  }
  EXPECT_TRUE(StateOf(*dispatcher, "bad", 0).ejected);
  EXPECT_EQ(UsedFor(*dispatcher, "", kSecond), (Set{"good"}));
  dispatcher->End(Must(dispatcher->Send(RequestFor(), 11 * kSecond, good)).attempt, AttemptEnd::kAnswered,
                  11 * kSecond);
  EXPECT_FALSE(StateOf(*dispatcher, "bad", 11 * kSecond).ejected);
}

// A server that drains says so, and is what it says.
TEST(Dispatcher, ADrainDoesNotCountAgainstAServer) {
  const auto dispatcher = Make({.policy = "random", .most_ejected = 1});
  const std::vector<std::string> names = {"a", "b"}, other = {"b"};
  dispatcher->SetServers(names, 0);
  std::vector<Dispatcher::Attempt> attempts;
  for (int i = 0; i < 8; ++i) attempts.push_back(Must(dispatcher->Send(RequestFor(), 0, other)).attempt);
  ServerSnapshot drains = SnapshotWith(0);
  drains.draining = true;
  dispatcher->Observe("a", drains, 0);
  for (const Dispatcher::Attempt attempt : attempts) dispatcher->End(attempt, AttemptEnd::kNotStarted, 0);
  EXPECT_FALSE(StateOf(*dispatcher, "a", 0).ejected);
}

TEST(Dispatcher, AConversationStaysWhereItIs) {
  const auto dispatcher = Make({.policy = "random", .most_ejected = 1});
  dispatcher->SetServers(Names(4), 0);
  RouteRequest request = RequestFor();
  request.session_id = "chat-1";
  const auto ask = [&](const RouteRequest& of, TimeNs now) {
    const auto decision = Must(dispatcher->Send(of, now));
    dispatcher->End(decision.attempt, AttemptEnd::kAnswered, now);
    return decision.server;
  };
  const std::string first = ask(request, 0);
  RouteRequest by_token = RequestFor();
  by_token.session_token = SessionToken(first);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(ask(request, kSecond), first);
    EXPECT_EQ(ask(by_token, kSecond), first);
  }
  for (int i = 0; i < 3; ++i) dispatcher->ObserveProbe(first, false, kSecond);
  const std::string next = ask(request, 2 * kSecond);  // it moves with its server, and stays there
  EXPECT_NE(next, first);
  EXPECT_NE(ask(by_token, 2 * kSecond), first);
  dispatcher->ObserveProbe(first, true, 3 * kSecond);
  EXPECT_EQ(ask(request, 100 * kSecond), next);
  std::set<std::string> others;
  for (int i = 0; i < 50; ++i) others.insert(ask(RequestFor(), 100 * kSecond));
  EXPECT_EQ(others.size(), 4u);
}

TEST(SessionServers, AreBoundedAndForgotten) {
  SessionServers sessions;
  for (std::size_t i = 0; i < SessionServers::kMost + 10; ++i) sessions.Bind(std::to_string(i), "a", 0);
  EXPECT_EQ(sessions.size(), SessionServers::kMost);
  EXPECT_EQ(sessions.Find("0", 0), "");
  EXPECT_EQ(sessions.Find("10", 0), "a");
  sessions.Bind("10", "b", kSecond);
  EXPECT_EQ(sessions.Find("10", SessionServers::kKeptFor + kSecond), "b");
  EXPECT_EQ(sessions.Find("11", SessionServers::kKeptFor + kSecond), "");
  sessions.Bind(std::string(SessionServers::kMostIdBytes + 1, 'x'), "a", 0);
  sessions.Bind("", "a", 0);
  EXPECT_EQ(sessions.Find("", 0), "");
}

TEST(Dispatcher, ErrorsAreBetterThanNothing) {
  const auto dispatcher = Make({.policy = "random", .most_ejected = 1});
  const std::vector<std::string> names = {"bad", "good"};
  dispatcher->SetServers(names, 0);
  const std::vector<std::string> good = {"good"};
  for (int i = 0; i < 5; ++i) {
    dispatcher->End(Must(dispatcher->Send(RequestFor(), 0, good)).attempt, AttemptEnd::kServerError, 0);
  }
  EXPECT_EQ(UsedFor(*dispatcher, "", kSecond), (Set{"good"}));
  EXPECT_FALSE(
      dispatcher->Send(RequestFor(), kSecond, good).ok());  // it did not begin there, and may be repeated later
  ServerSnapshot drains = Offers({"base"});
  drains.draining = true;
  dispatcher->Observe("good", drains, kSecond);
  EXPECT_EQ(UsedFor(*dispatcher, "", 2 * kSecond), (Set{"bad"}));
  for (int i = 0; i < 3; ++i) dispatcher->ObserveProbe("bad", false, 2 * kSecond);
  EXPECT_FALSE(dispatcher->Send(RequestFor(), 2 * kSecond).ok());
}

TEST(Dispatcher, WhichAnswersAreErrorsOfTheServer) {
  for (const int status : {200, 400, 429, 499, 501}) EXPECT_EQ(EndWithStatus(status), AttemptEnd::kAnswered) << status;
  for (const int status : {500, 502, 503, 504}) EXPECT_EQ(EndWithStatus(status), AttemptEnd::kServerError) << status;
}

TEST(Dispatcher, PanicUsesAllServers) {
  const auto dispatcher = Make({.policy = "random"});
  dispatcher->SetServers(Names(4), 0);
  const auto fail = [&](const std::string& name) {
    for (int i = 0; i < 3; ++i) dispatcher->ObserveProbe(name, false, 0);
  };
  const auto used = [&] {
    std::set<std::string> names;
    for (int i = 0; i < 200; ++i) names.insert(Must(dispatcher->Send(RequestFor(), 1)).server);
    return names.size();
  };
  fail(Names(4)[0]);
  fail(Names(4)[1]);
  EXPECT_FALSE(dispatcher->panic(1));
  EXPECT_EQ(used(), 2u);
  fail(Names(4)[2]);
  EXPECT_TRUE(dispatcher->panic(1));
  EXPECT_EQ(used(), 4u);
}

TEST(Dispatcher, ANewInstanceEndsEjectionAndDrain) {
  const auto dispatcher = Make({});
  const std::vector<std::string> names = {"a", "b", "c"};
  dispatcher->SetServers(names, 0);
  for (const std::string& name : names) dispatcher->Observe(name, SnapshotWith(1), 0);
  ServerSnapshot drains = SnapshotWith(1, 2);
  drains.draining = true;
  dispatcher->Observe("a", drains, kSecond);
  dispatcher->Observe("a", SnapshotWith(1), 2 * kSecond);  // an older version of the same instance
  for (int i = 0; i < 3; ++i) dispatcher->ObserveProbe("a", false, 2 * kSecond);
  EXPECT_TRUE(StateOf(*dispatcher, "a", 2 * kSecond).draining);
  EXPECT_TRUE(StateOf(*dispatcher, "a", 2 * kSecond).ejected);
  dispatcher->Observe("a", SnapshotWith(0, 1, "second"), 3 * kSecond);
  const Dispatcher::ServerState state = StateOf(*dispatcher, "a", 3 * kSecond);
  EXPECT_FALSE(state.draining);
  EXPECT_FALSE(state.ejected);
  EXPECT_LT(state.share, 0.2);
  EXPECT_EQ(StateOf(*dispatcher, "b", 3 * kSecond).share, 1);
}

TEST(Dispatcher, AnOldSnapshotCountsAsNone) {
  const auto dispatcher = Make({.policy = "most-idle"});
  const std::vector<std::string> names = {"a", "b"};
  dispatcher->SetServers(names, 0);
  dispatcher->Observe("a", SnapshotWith(0), 0);
  dispatcher->Observe("b", SnapshotWith(50), 9 * kSecond);
  EXPECT_EQ(Must(dispatcher->Send(RequestFor(), 9 * kSecond)).server, "a");
  EXPECT_EQ(Must(dispatcher->Send(RequestFor(), 11 * kSecond)).server, "b");
  EXPECT_EQ(dispatcher->SnapshotOf("a"), nullptr);
  EXPECT_NE(dispatcher->SnapshotOf("b"), nullptr);
  EXPECT_FALSE(StateOf(*dispatcher, "a", 11 * kSecond).heard);
}

TEST(Dispatcher, EndsAreTakenOffTheSnapshot) {
  const auto dispatcher = Make({.policy = "most-idle"});
  const std::vector<std::string> names = {"a", "b"};
  dispatcher->SetServers(names, 0);
  std::vector<Dispatcher::Attempt> at_a;
  dispatcher->Observe("a", SnapshotWith(0), 0);
  dispatcher->Observe("b", SnapshotWith(3), 0);
  for (int i = 0; i < 3; ++i) {
    const Dispatcher::Decision decision = Must(dispatcher->Send(RequestFor(), 1));
    ASSERT_EQ(decision.server, "a");
    at_a.push_back(decision.attempt);
  }
  dispatcher->Observe("a", SnapshotWith(4, 2), kSecond);  // these three, and one of another router
  EXPECT_EQ(Must(dispatcher->Send(RequestFor(), kSecond + 1)).server, "b");
  dispatcher->End(at_a[0], AttemptEnd::kAnswered, kSecond + 2);
  dispatcher->End(at_a[1], AttemptEnd::kCancelled, kSecond + 2);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Must(dispatcher->Send(RequestFor(), kSecond + 3)).server, "a");
}

// --- The dispatcher against a simple model of the same rules.

struct ModelServer {
  std::set<std::string> digests_of_x;  // empty: not listed
  bool draining = false, heard = false;
  std::int64_t in_flight = 0;
  std::uint64_t version = 0;
  int instance = 0;
};

class RandomRun {
 public:
  RandomRun(std::string policy, std::uint64_t seed)
      : prng_(seed),
        dispatcher_(Make({.policy = policy, .seed = seed})),
        twin_(Make({.policy = policy, .seed = seed})) {}

  void Steps(int steps) {
    SetServers();
    for (int i = 0; i < steps; ++i) {
      now_ += static_cast<TimeNs>(prng_.NextBelow(200)) * kNsPerMs;
      const std::uint64_t what = prng_.NextBelow(100);
      if (what < 40)
        Send();
      else if (what < 60)
        End();
      else if (what < 65)
        Answer();
      else if (what < 90)
        Observe();
      else if (what < 97)
        Probe();
      else if (what < 98)
        SetServers();
      else
        Retry();
      Compare();
    }
    while (!attempts_.empty()) End();
    for (const auto& [name, server] : servers_) EXPECT_EQ(server.in_flight, 0);
    Compare();
  }
  int sent() const { return sent_; }

 private:
  struct Attempt {
    std::string server;
    std::uint64_t joined;  // which stay of the server in the list
  };

  void Both(const auto& use) {
    use(*dispatcher_);
    use(*twin_);
  }
  std::string AnyServer() {
    auto each = servers_.begin();
    std::advance(each, static_cast<std::ptrdiff_t>(prng_.NextBelow(servers_.size())));
    return each->first;
  }

  void SetServers() {
    std::vector<std::string> names;
    for (const std::string& name : Names(8)) {
      if (prng_.NextBelow(4) != 0) names.push_back(name);
    }
    if (names.empty()) names.push_back(Names(1)[0]);
    const std::map<std::string, ModelServer> before = std::exchange(servers_, {});
    for (const std::string& name : names) {
      const auto found = before.find(name);
      servers_[name] = found == before.end() ? ModelServer() : found->second;
      if (found == before.end()) joined_[name] += 1;
    }
    Both([&](Dispatcher& each) { each.SetServers(names, now_); });
  }

  void Send() {
    RouteRequest request = RequestFor(prng_.NextBelow(2) == 0 ? "x" : "y");
    if (prng_.NextBelow(3) == 0) {
      request.adapter = "x";
      request.digest = prng_.NextBelow(2) == 0 ? "old" : "new";
    }
    std::vector<std::string> tried;
    while (prng_.NextBelow(4) == 0) tried.push_back(AnyServer());
    std::set<std::string> allowed;
    const bool panic = dispatcher_->panic(now_);
    bool any = false;
    for (const Dispatcher::ServerState& state : dispatcher_->States(now_)) {
      const ModelServer& server = servers_.at(state.name);
      if (server.draining || (state.ejected && !panic) || std::ranges::find(tried, state.name) != tried.end()) continue;
      any = true;
      const bool other = state.heard && !server.digests_of_x.empty() && !server.digests_of_x.contains(request.digest);
      if (request.digest.empty() || !other) allowed.insert(state.name);
    }
    const auto decision = dispatcher_->Send(request, now_, tried), twin = twin_->Send(request, now_, tried);
    ASSERT_EQ(decision.ok(), !allowed.empty());
    ASSERT_EQ(twin.ok(), decision.ok());
    if (!decision.ok()) {
      EXPECT_EQ(decision.error().code, any ? ErrorCode::kNotFound : ErrorCode::kUnavailable);
      return;
    }
    ++sent_;
    EXPECT_TRUE(allowed.contains(decision->server)) << decision->server;
    EXPECT_EQ(decision->server, twin->server);
    EXPECT_EQ(decision->attempt, twin->attempt);
    servers_.at(decision->server).in_flight += 1;
    attempts_[decision->attempt] = {decision->server, joined_[decision->server]};
    if (tried.empty()) requests_.push_back(now_);
  }

  void End() {
    if (attempts_.empty()) return;
    auto each = attempts_.begin();
    std::advance(each, static_cast<std::ptrdiff_t>(prng_.NextBelow(attempts_.size())));
    const auto end = static_cast<AttemptEnd>(prng_.NextBelow(5));
    Both([&](Dispatcher& dispatcher) { dispatcher.End(each->first, end, now_); });
    const auto server = servers_.find(each->second.server);
    if (server != servers_.end() && joined_[server->first] == each->second.joined) server->second.in_flight -= 1;
    attempts_.erase(each);
  }

  void Answer() {
    if (!attempts_.empty()) Both([&](Dispatcher& each) { each.Answered(attempts_.rbegin()->first, now_); });
  }

  void Observe() {
    const std::string name = AnyServer();
    ModelServer& server = servers_.at(name);
    const std::uint64_t kind = prng_.NextBelow(20);
    if (kind == 0) {
      server.instance += 1;
      server.version = 0;
      server.draining = false;
    }
    if (kind == 1) server.draining = true;
    server.digests_of_x.clear();
    ServerSnapshot snapshot =
        SnapshotWith(static_cast<std::int64_t>(prng_.NextBelow(20)), ++server.version, std::to_string(server.instance));
    snapshot.draining = server.draining;
    if (prng_.NextBelow(2) == 0) {
      server.digests_of_x.insert(prng_.NextBelow(2) == 0 ? "old" : "new");
      snapshot.adapters = {{.name = "x",
                            .digest = *server.digests_of_x.begin(),
                            .place = AdapterPlace::kDevice,
                            .rank = 8,
                            .bytes = 1 << 20,
                            .running = snapshot.running / 2}};
    }
    Both([&](Dispatcher& each) { each.Observe(name, snapshot, now_ - 50 * kNsPerMs); });
  }

  void Probe() {
    const std::string name = AnyServer();
    const bool healthy = prng_.NextBelow(3) == 0;
    for (std::uint64_t n = 1 + prng_.NextBelow(3); n > 0; --n)
      Both([&](Dispatcher& each) { each.ObserveProbe(name, healthy, now_); });
  }

  // The budget counts whole seconds: at least nine and less than ten of the past.
  void Retry() {
    const auto since = [&](const std::vector<TimeNs>& times, TimeNs age) {
      return static_cast<double>(std::ranges::count_if(times, [&](TimeNs at) { return at > now_ - age; }));
    };
    const bool allowed = dispatcher_->MayRetry(now_);
    EXPECT_EQ(allowed, twin_->MayRetry(now_));
    if (allowed) retries_.push_back(now_);
    const auto always = static_cast<double>(RetryBudget::kAlways);
    EXPECT_LE(since(retries_, 9 * kSecond), always + 0.2 * since(requests_, 10 * kSecond));
    if (!allowed) EXPECT_GE(since(retries_, 10 * kSecond) + 1, always + 0.2 * since(requests_, 9 * kSecond));
  }

  void Compare() {
    const auto states = dispatcher_->States(now_);
    ASSERT_EQ(states.size(), servers_.size());
    for (const Dispatcher::ServerState& state : states) {
      EXPECT_EQ(state.in_flight, servers_.at(state.name).in_flight) << state.name;
      EXPECT_EQ(state.draining, servers_.at(state.name).draining) << state.name;
      EXPECT_GT(state.share, 0);
      EXPECT_LE(state.share, 1);
    }
  }

  Prng prng_;
  std::unique_ptr<Dispatcher> dispatcher_, twin_;
  TimeNs now_ = kSecond;
  std::map<std::string, ModelServer> servers_;
  std::map<std::string, std::uint64_t> joined_;
  std::map<Dispatcher::Attempt, Attempt> attempts_;
  std::vector<TimeNs> requests_, retries_;
  int sent_ = 0;
};

TEST(Dispatcher, KeepsItsRulesInRandomRuns) {
  std::uint64_t seed = 1;
  for (const RoutePolicyName& policy : RoutePolicies()) {
    int sent = 0;
    for (int run = 0; run < 5; ++run) {
      SCOPED_TRACE("policy " + std::string(policy.name) + ", seed " + std::to_string(seed));
      RandomRun random(std::string(policy.name), seed++);
      random.Steps(600);
      sent += random.sent();
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(sent, 500);
  }
}

// --- Herds. Servers that take any number of requests, 2 seconds each; their state is known once a second.

// The most requests that a server had at once, with 200 requests per second for 20 servers: 20 each if evenly spread.
std::int64_t MostAtOneServer(bool correct, const std::string& policy, std::size_t routers = 1) {
  const std::vector<std::string> names = Names(20);
  std::vector<std::unique_ptr<Dispatcher>> dispatchers;
  for (std::size_t r = 0; r < routers; ++r) {
    dispatchers.push_back(Make({.policy = policy, .correct_by_own = correct, .seed = r}));
    dispatchers[r]->SetServers(names, 0);
  }
  struct End {
    std::size_t router;
    Dispatcher::Decision decision;
  };
  std::map<std::string, std::int64_t> running;
  std::multimap<TimeNs, End> ends;
  std::int64_t most = 0;
  std::uint64_t version = 0;
  Prng prng(1);
  for (TimeNs now = 0; now < 20 * kSecond; now += 5 * kNsPerMs) {
    if (now % kSecond == 0) {
      ++version;
      for (const std::string& name : names) {
        for (const auto& each : dispatchers) each->Observe(name, SnapshotWith(running[name], version), now);
      }
    }
    while (!ends.empty() && ends.begin()->first <= now) {
      const End& end = ends.begin()->second;
      running[end.decision.server] -= 1;
      dispatchers[end.router]->End(end.decision.attempt, AttemptEnd::kAnswered, now);
      ends.erase(ends.begin());
    }
    const std::size_t router = prng.NextBelow(routers);
    const Dispatcher::Decision decision = Must(dispatchers[router]->Send(RequestFor(), now));
    running[decision.server] += 1;
    if (now > 5 * kSecond) most = std::max(most, running[decision.server]);
    ends.emplace(now + 2 * kSecond, End{router, decision});
  }
  return most;
}

TEST(Dispatcher, OwnDispatchesPreventHerds) {
  EXPECT_LE(MostAtOneServer(true, "most-idle"), 24);
  EXPECT_GE(MostAtOneServer(false, "most-idle"), 60);
  EXPECT_LE(MostAtOneServer(true, "seconds"), 30);
}

// Each of several routers sees only its own requests; by their share of the snapshots it tells how many there are.
TEST(Dispatcher, SeveralRoutersDoNotHerd) { EXPECT_LE(MostAtOneServer(true, "most-idle", 4), 40); }

}  // namespace
}  // namespace loramux::dispatcher_test
