// Settings of the HTTP server: the values behind the command-line flags.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace loramux {

class BoundPort;

// Callbacks to the server's owner, called on any of the server's threads. Empty ones are not called.
struct HttpHooks {
  std::function<void(int status)> responded;  // a response with this status begins
};

// A browser opens up to 6, and a pool of connections commonly 10.
inline constexpr int kLeastConnectionsPerAddress = 16;

// Settings of an HttpServer. Values beyond a limit get the status given in the comment.
struct HttpServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;  // 0: any free port
  // The socket of `host` and `port` where it is bound already (http/bound_port.h); null: the server binds.
  std::shared_ptr<BoundPort> bound_port;
  int threads = 1;  // threads that do I/O
  // Per request; beyond: 413.
  std::size_t max_body_bytes = std::size_t{16} << 20;
  // Bytes that all connections hold together until the bodies are parsed; beyond: 503.
  std::size_t max_held_body_bytes = std::size_t{512} << 20;
  // The same for the connections of one client address. 0: no limit; nullopt: a quarter of max_held_body_bytes.
  std::optional<std::int64_t> max_held_body_bytes_per_address;
  // Per request, without the fields that a router adds (connection_read.cc), so that a request that is within the
  // bounds of a router is within those of its servers; beyond: 431.
  std::size_t max_header_bytes = std::size_t{32} << 10;
  // The same; beyond: 431.
  std::size_t max_header_fields = 100;
  std::size_t max_target_bytes = std::size_t{8} << 10;  // bytes of the request line; beyond: 414
  // Beyond: a connection of a client with more connections is closed if it waits (http/connection_limits.h), or the
  // new one gets 503.
  int max_connections = 4096;
  // Beyond: 503. 0: no limit; nullopt: a quarter of max_connections, but at least kLeastConnectionsPerAddress.
  std::optional<std::int64_t> max_connections_per_address;
  std::chrono::milliseconds idle_timeout{120'000};  // between two requests of a connection
  // For the TLS handshake, and from the first byte of a request to the end of its header.
  std::chrono::milliseconds header_timeout{20'000};
  // For a body: this long, plus the time that its bytes take at this rate.
  std::chrono::milliseconds body_timeout{20'000};
  std::int64_t min_body_bytes_per_second = 64 << 10;
  std::chrono::milliseconds write_timeout{30'000};  // without progress, because the client does not read
  std::chrono::milliseconds linger_timeout{1'000};  // for the client to read the last response before the close
  std::vector<std::string> allowed_origins;  // origins of web pages that may read responses; "*": all (http/cors.h)
  std::chrono::milliseconds drain_timeout{30'000};   // for running requests to finish at shutdown
  std::chrono::milliseconds cut_off_timeout{2'000};  // then, for handlers to tell their clients that they are cut off
  HttpHooks hooks;

  // The two limits of one client address; 0: none.
  std::int64_t ConnectionsPerAddress() const {
    return max_connections_per_address.value_or(std::max(kLeastConnectionsPerAddress, max_connections / 4));
  }
  std::size_t HeldBodyBytesPerAddress() const {
    return static_cast<std::size_t>(
        max_held_body_bytes_per_address.value_or(static_cast<std::int64_t>(max_held_body_bytes / 4)));
  }
};

}  // namespace loramux
