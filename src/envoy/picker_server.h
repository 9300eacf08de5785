// The gRPC server of the endpoint picker. It lies in a plugin, libloramux_envoy.so, because the libraries of gRPC cost
// each start of the program tens of milliseconds, and only this needs them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "envoy/proxy_message.h"

namespace loramux {

struct PickerServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;                             // 0: a free one
  std::size_t max_message = (std::size_t{17} << 20);  // bytes: a whole body and what is around it
  std::string certificate, key;                       // PEM texts; empty: without TLS
};

// Serves envoy.service.ext_proc.v3.ExternalProcessor and grpc.health.v1.Health.
class PickerServer {
 public:
  // Ends it at once, unless Shutdown did.
  virtual ~PickerServer() = default;
  virtual std::uint16_t port() const = 0;
  // What the health service says of all services but "liveness", which is always served. It begins with "not serving".
  virtual void SetServing(bool serving) = 0;
  // Takes no new exchanges, closes those that are settled, waits for the rest until `patience` is over, and cuts off
  // what remains. Returns how many it cut off.
  virtual std::int64_t Shutdown(std::chrono::nanoseconds patience) = 0;
};

// Loads the plugin and starts the server. `exchanges` must outlive it. Errors: no plugin, or one of another build; the
// port is in use; an unreadable certificate or key.
Result<std::unique_ptr<PickerServer>> StartPickerServer(const PickerServerOptions& options, ProxyExchanges& exchanges);

}  // namespace loramux
