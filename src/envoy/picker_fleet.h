// The links of a picker to its servers, on a thread of their own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "base/clock.h"
#include "envoy/endpoint_picker.h"
#include "router/server_address.h"
#include "router/server_pool.h"

namespace loramux {

class PickerFleet {
 public:
  // `on_ready` is called on the fleet's thread when a first server answers, and when none does any longer. `picker` and
  // `clock` must outlive the fleet.
  PickerFleet(EndpointPicker& picker, ServerAccess access, std::function<void(bool ready)> on_ready,
              const Clock& clock);
  // Stops the links and joins the thread.
  ~PickerFleet();
  PickerFleet(const PickerFleet&) = delete;
  PickerFleet& operator=(const PickerFleet&) = delete;

  // The servers that exist from now on. Looks their hosts up, because proxies know servers by IP address; blocks. A
  // server whose host has no address is left out, with a warning. Thread-safe.
  void SetServers(const std::vector<ServerAddress>& servers);

 private:
  // On the fleet's thread.
  void Relink(const std::vector<ServerAddress>& servers);
  std::shared_ptr<RoutedServer> Link(const ServerAddress& address);
  void Heard(RoutedServer& server, ServerSnapshot snapshot, TimeNs as_of);
  void Probed(RoutedServer& server, bool healthy, const std::string& why);
  void TellReadiness();
  boost::asio::awaitable<void> LearnProfile(std::shared_ptr<RoutedServer> server);

  EndpointPicker& picker_;
  const ServerAccess access_;
  const std::function<void(bool ready)> on_ready_;
  const Clock& clock_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{io_.get_executor()};
  std::map<std::string, std::shared_ptr<RoutedServer>> servers_;
  bool knows_profile_ = false, ready_ = false;
  std::thread thread_;
};

}  // namespace loramux
