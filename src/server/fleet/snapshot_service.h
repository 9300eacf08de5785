// What routers ask of a server: GET /internal/snapshot, its state by long poll, and GET /internal/profile. Needs
// coroutines.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include "adapter/registry.h"
#include "base/clock.h"
#include "base/result.h"
#include "cluster/server_snapshot.h"
#include "http/exchange.h"
#include "server/adapters/adapter_finder.h"
#include "server/fleet/prefix_memory.h"
#include "server/metrics/metrics.h"

namespace loramux {

inline constexpr std::int64_t kDefaultSnapshotWaitMs = 10'000, kMaxSnapshotWaitMs = 30'000;

// What routers may ask, and how a drain is announced.
struct SnapshotServiceOptions {
  std::string key;            // key that routers must send; empty: none is needed, or see key_required
  bool key_required = false;  // the server has API keys: without `key` routers are refused
  std::string profile;        // the JSON of the performance profile; empty: there is none
  std::string profile_id;     // names it in snapshots
  // How long the server goes on to take requests after it has published the drain, if a router listens.
  std::chrono::milliseconds drain_notice{1000};
};

// A request for a snapshot.
struct SnapshotQuery {
  std::optional<std::uint64_t> after;  // the version that the router has; nullopt: none, answer at once
  std::string instance;                // whose version that is; empty: not said
  // ServerSnapshot::offered_version of the list that the router has; 0: of none. nullopt: it wants no list.
  std::optional<std::uint64_t> offered;
  std::int64_t wait_ms = kDefaultSnapshotWaitMs;
};

// Parses a query such as "after=7&instance=3f1c&wait_ms=10000". Unknown parameters are ignored. Errors name the
// parameter.
Result<SnapshotQuery> ParseSnapshotQuery(std::string_view query);

// Thread-safe. A thread of its own asks the engine for its state, at most every 100 ms, and only while a router polls.
// So a snapshot costs the engine's steps nothing but what Engine::Snapshot costs on request.
class SnapshotService {
 public:
  // `registry`, `finder`, `prefixes` and `clock` must outlive the service; the service must
  // outlive its HTTP server. An empty `engine`: there is no state, and polls get 503.
  SnapshotService(SnapshotServiceOptions options, SnapshotSource engine, const AdapterRegistry& registry,
                  AdapterFinder& finder, PrefixMemory& prefixes, const Clock& clock);
  ~SnapshotService();
  SnapshotService(const SnapshotService&) = delete;
  SnapshotService& operator=(const SnapshotService&) = delete;

  // Adds both routes.
  void AddRoutes(RouteTable& routes);

  // Publishes that the server drains, which wakes all polls. If a router has polled within the last 10 s, returns after
  // `drain_notice`; otherwise at once. From then on polls are answered at once. A second call does nothing. Not for
  // the threads of the HTTP server, which must still run.
  void Drain();

 private:
  // A version as it is sent. `json` is without the list of what is offered, which most polls have already.
  struct Published {
    ServerSnapshot snapshot;
    std::string json;
  };
  // A handler that sleeps on its connection's strand.
  struct Sleeper;
  class Poller;

  boost::asio::awaitable<void> Poll(HttpExchange& exchange);
  boost::asio::awaitable<void> WaitForNews(HttpExchange& exchange, const SnapshotQuery& query);
  HttpReply Profile(const HttpRequest& request) const;
  HttpReply Reply(const SnapshotQuery& query) const;
  std::optional<HttpReply> Refusal(const HttpRequest& request) const;
  // Whether the engine was asked since about the time at which a poll arrived; whether that poll has its answer.
  bool IsFresh(TimeNs arrived) const;
  bool Answers(const SnapshotQuery& query, TimeNs arrived) const;
  void Run();
  void Refresh();
  void Publish(ServerSnapshot snapshot);
  void WakeAll();
  void Stop();

  const SnapshotServiceOptions options_;
  const SnapshotSource engine_;
  const AdapterRegistry& registry_;
  AdapterFinder& finder_;
  PrefixMemory& prefixes_;
  const Clock& clock_;
  const std::string instance_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<const Published> published_;       // null: nothing yet
  std::shared_ptr<const EngineSnapshot> of_engine_;  // what published_ was made of, or one that says the same
  TimeNs asked_at_ = 0;                              // when the engine was asked last; 0: never
  TimeNs polled_at_ = 0;                             // when a router polled last; 0: never
  std::vector<std::weak_ptr<Sleeper>> sleepers_;
  int polls_ = 0;        // in progress
  bool urgent_ = false;  // the next state is wanted at once
  bool draining_ = false;
  bool released_ = false;  // polls do not wait any longer
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the other members
};

}  // namespace loramux
