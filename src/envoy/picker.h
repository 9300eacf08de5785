// `loramux route --ext-proc`: the endpoint picker of Envoy, and of gateways with the Gateway API Inference Extension.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "cluster/dispatcher.h"
#include "envoy/endpoint_picker.h"
#include "envoy/exchange.h"
#include "envoy/picker_fleet.h"
#include "envoy/picker_server.h"
#include "http/tls_context.h"
#include "router/catalogue.h"
#include "router/router.h"
#include "router/server_address.h"

namespace loramux {

// A picker with its gRPC server. It holds no request: proxies forward requests, and ask it where to. The methods may be
// called on any thread.
class Picker {
 public:
  // Listens at `port` (0: a free one) of the router's host at once, and says that it is ready once a server has
  // answered. Of the router's options it takes those of servers, dispatch, TLS and the size of bodies. `clock` must
  // outlive the picker. Errors: those of StartPickerServer and Dispatcher::Create; files of TLS that cannot be used.
  static Result<std::unique_ptr<Picker>> Start(const RouterOptions& options, std::uint16_t port, const Clock& clock);
  // Calls Shutdown without patience.
  ~Picker();
  Picker(const Picker&) = delete;
  Picker& operator=(const Picker&) = delete;

  // Returns the port in use.
  std::uint16_t port() const { return server_->port(); }
  // The servers that exist from now on, as PickerFleet::SetServers.
  void SetServers(const std::vector<ServerAddress>& servers) { fleet_->SetServers(servers); }
  void SetCatalogue(Catalogue catalogue) { picker_->SetCatalogue(std::move(catalogue)); }
  // Takes no new exchanges, waits for those that need an answer, and returns how many it cut off.
  std::int64_t Shutdown(std::chrono::nanoseconds patience);

 private:
  Picker() = default;
  // In the order of their construction; the server's threads use the others.
  std::unique_ptr<EndpointPicker> picker_;
  std::unique_ptr<PickerExchanges> exchanges_;
  std::unique_ptr<PickerServer> server_;
  std::unique_ptr<PickerFleet> fleet_;
};

}  // namespace loramux
