// What a router hears of one server: its snapshots by long poll, or the answers to probes of a server that has none.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/thread_pool.hpp>

#include "base/clock.h"
#include "cluster/server_snapshot.h"
#include "router/server_address.h"

namespace loramux {

struct ServerLinkOptions {
  ServerAddress address;
  std::string fleet_key;  // sent to /internal of the server; empty: none
  bool insecure = false;  // as in HttpClientOptions
  std::string ca_file;
  // A long poll that nothing changes is answered after this time, so a server that hangs is noticed after `wait` and
  // `patience`.
  std::chrono::milliseconds wait{1'000};
  std::chrono::milliseconds patience{1'000};      // for the answer beyond that, for a connection, for a probe
  std::chrono::milliseconds probe_interval{250};  // between probes, and between tries after a failure
  std::chrono::milliseconds least_interval{50};   // between two polls
  boost::asio::thread_pool* workers = nullptr;    // parses large snapshots; null: the executor's thread does
  std::string health_path = "/health";            // what probes ask
};

// Called on the executor's thread. Empty ones are not called.
struct ServerLinkCallbacks {
  // A snapshot arrived that was true at `as_of`, on the link's clock.
  std::function<void(ServerSnapshot snapshot, TimeNs as_of)> snapshot;
  // The server turned out to have no snapshots, at first or because another program answers at its address now.
  std::function<void()> foreign;
  // A poll or probe ended. `why` says what is wrong with a server that is not healthy.
  std::function<void(bool healthy, const std::string& why)> probe;
};

// Use it on the thread that runs the executor. It needs no proxy: an endpoint picker has links too.
class ServerLink {
 public:
  // `clock` and the workers must outlive the executor's run.
  ServerLink(boost::asio::any_io_executor executor, ServerLinkOptions options, ServerLinkCallbacks callbacks,
             const Clock& clock);
  // Stops.
  ~ServerLink();
  ServerLink(const ServerLink&) = delete;
  ServerLink& operator=(const ServerLink&) = delete;

  // Begins to listen to the server. REQUIRES: called once.
  void Start();
  // No callback is called any longer; the operation that runs is cancelled.
  void Stop();
  // Whether the server has no snapshots, so that it is probed.
  bool foreign() const;

 private:
  class Session;
  std::shared_ptr<Session> session_;
};

}  // namespace loramux
