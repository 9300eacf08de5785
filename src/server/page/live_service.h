// What the page watches: GET /internal/live, an event a second, and GET /internal/adapters, the list of all adapters.
// Needs coroutines.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include "adapter/registry.h"
#include "base/clock.h"
#include "http/exchange.h"
#include "server/adapters/adapter_finder.h"
#include "server/metrics/metrics.h"

namespace loramux {

// Connections that may watch at one time; a further one gets 503.
inline constexpr int kMaxLiveViewers = 32;

// Thread-safe. A thread of its own asks the engine and writes the event once for all viewers. It sleeps while no
// connection watches, and nothing is counted for it then.
class LiveService {
 public:
  // What the references name must outlive the service; the service must outlive its HTTP server. An empty `engine`:
  // there is no state, and viewers get 503. `changes`: who may change adapters: "none", "open" (every caller) or "key"
  // (the admin key). A viewer that takes longer than `slowest_write` for an event is dropped.
  LiveService(ServerMetrics& metrics, SnapshotSource engine, const AdapterRegistry& registry, AdapterFinder& finder,
              const Clock& clock, std::string changes,
              std::chrono::milliseconds slowest_write = std::chrono::seconds(10));
  ~LiveService();
  LiveService(const LiveService&) = delete;
  LiveService& operator=(const LiveService&) = delete;

  // Adds both routes. With API keys, /internal/live needs one that permits every model, and /internal/adapters leaves
  // out what the key does not permit.
  void AddRoutes(RouteTable& routes);

  // Ends all streams, and those that come later, because a shutdown waits for running requests. Not for the threads of
  // the HTTP server, which must still run.
  void Stop();

  // Connections that watch now.
  int viewers() const;

 private:
  struct Event {
    std::uint64_t number = 0;
    std::string text;  // as it is sent
  };
  struct Sleeper;
  class Viewer;

  boost::asio::awaitable<void> Watch(HttpExchange& exchange);
  boost::asio::awaitable<void> Stream(HttpExchange& exchange, const Viewer& viewer);
  boost::asio::awaitable<void> Adapters(HttpExchange& exchange);
  std::string AdaptersBody(const HttpRequest& request) const;
  void Run();
  std::shared_ptr<const Event> MakeEvent(int viewers);
  void WakeAll(std::chrono::milliseconds slowest);

  ServerMetrics& metrics_;
  const SnapshotSource engine_;
  const AdapterRegistry& registry_;
  AdapterFinder& finder_;
  const Clock& clock_;
  const std::string changes_;
  const std::chrono::milliseconds slowest_write_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<const Event> event_;  // the newest; null: none since the first viewer came
  std::uint64_t last_number_ = 0;
  std::vector<std::weak_ptr<Sleeper>> sleepers_;
  int viewers_ = 0;
  bool stopping_ = false;
  boost::asio::thread_pool listers_{1};  // reads the disk for the list of adapters
  std::thread thread_;                   // last: it uses the other members
};

}  // namespace loramux
