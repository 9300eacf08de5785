// The servers of a router: a client and a link for each, and the dispatcher that the links tell what they hear.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include "base/clock.h"
#include "cluster/dispatcher.h"
#include "http/client.h"
#include "router/server_address.h"
#include "router/server_link.h"

namespace loramux {

// One server. It lives as long as a request uses it, also after it left the pool.
struct RoutedServer {
  RoutedServer(const boost::asio::any_io_executor& executor, ServerAddress server, const ServerAccess& access,
               const Clock& clock);

  const ServerAddress address;
  HttpClient client;
  std::unique_ptr<ServerLink> link;
  std::string fault;       // what is wrong with it; empty: it answers
  std::string base_model;  // by its snapshot or its list of models; empty: unknown
  bool asked_for_profile = false;
  TimeNs asked_for_models = -1;  // when; -1: never. Only a server without snapshots is asked
};

// Use it on the thread that runs the executor.
class ServerPool {
 public:
  // `dispatcher`, `clock` and `workers` must outlive the pool. `executor` must have ended when the pool is destroyed.
  ServerPool(boost::asio::any_io_executor executor, ServerAccess access, Dispatcher& dispatcher,
             boost::asio::thread_pool& workers, const Clock& clock);

  // The servers that exist from now on; those of the same address stay as they are.
  void Set(std::vector<ServerAddress> servers);
  // No server is heard any longer.
  void Stop();

  // The server of this name; null: there is none.
  std::shared_ptr<RoutedServer> Find(std::string_view name) const;
  // All servers, ascending by name.
  std::vector<std::shared_ptr<RoutedServer>> All() const;
  // The adapter that a request's `model` means; empty: a base model.
  std::string AdapterOf(std::string_view model) const;
  // Asks the servers without snapshots for their models again, because adapters were loaded or unloaded.
  void AskForModels();
  // Grows with each change of a server or of the servers.
  std::uint64_t changes() const { return changes_; }

  const ServerAccess& access() const { return access_; }
  Dispatcher& dispatcher() { return dispatcher_; }
  const Clock& clock() const { return clock_; }
  const boost::asio::any_io_executor& executor() const { return executor_; }
  boost::asio::thread_pool& workers() const { return workers_; }

 private:
  std::shared_ptr<RoutedServer> Add(ServerAddress address);
  void Heard(RoutedServer& server, ServerSnapshot snapshot, TimeNs as_of);
  void BecameForeign(RoutedServer& server);
  void Probed(RoutedServer& server, bool healthy, const std::string& why);
  boost::asio::awaitable<void> LearnProfile(std::shared_ptr<RoutedServer> server);
  boost::asio::awaitable<void> LearnModels(std::shared_ptr<RoutedServer> server);

  const boost::asio::any_io_executor executor_;
  const ServerAccess access_;
  Dispatcher& dispatcher_;
  boost::asio::thread_pool& workers_;
  const Clock& clock_;
  std::map<std::string, std::shared_ptr<RoutedServer>, std::less<>> servers_;
  bool stopped_ = false;
  std::uint64_t changes_ = 1;
  bool knows_profile_ = false;
};

}  // namespace loramux
