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
#include "http/client.h"
#include "router/server_address.h"

namespace loramux {

// How all servers are reached.
struct ServerAccess {
  std::string fleet_key;  // for /internal of the servers; empty: none
  bool insecure = false;  // do not check the servers' certificates
  std::string ca_file;    // whom to trust besides the system's authorities
  std::chrono::milliseconds connect_timeout{2'000};
  // Kept-alive connections that were idle for longer are not used: a request on a connection that the server closes at
  // that moment is lost. Shorter than what servers have (5 s is the shortest that is common).
  std::chrono::milliseconds idle_timeout{4'000};
  std::size_t max_idle = 1024;  // kept-alive connections of each server
  bool learn_profile = false;   // take the times of servers from the first server that has a profile
  // A server that answers no poll or probe for so long gets no time to load or unload an adapter: one that works on it
  // answers them.
  std::chrono::milliseconds silence_patience{5'000};
  // A long poll that nothing changes is answered after `poll_wait`, so a server that hangs is noticed after both times.
  std::chrono::milliseconds poll_wait{1'000};
  std::chrono::milliseconds poll_patience{1'000};  // for the answer beyond that, for a connection, for a probe
  std::chrono::milliseconds probe_interval{250};   // between probes, and between tries after a failure
};

// The client of requests to a server.
HttpClientOptions ClientOptionsOf(const ServerAddress& address, const ServerAccess& access);

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
  // `workers` parses large snapshots; null: the executor's thread does. They and `clock` must outlive the executor's
  // run.
  ServerLink(boost::asio::any_io_executor executor, ServerAddress address, ServerAccess access,
             boost::asio::thread_pool* workers, ServerLinkCallbacks callbacks, const Clock& clock);
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
