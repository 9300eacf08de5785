// How the HTTP server behaves: the values behind the command line's flags.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "server/request_trace.h"

namespace loramux {

// What the HTTP server asks and tells its owner, on any of its threads. Empty ones are not called.
struct HttpHooks {
  RandomBits random_bits;                     // for request ids; empty: from the clock
  std::function<void(int status)> responded;  // a response begins
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;  // 0: any free one
  int threads = 1;            // that do I/O
  std::size_t max_body_bytes = std::size_t{16} << 20;
  // of all connections, until they are parsed; more get 503
  std::size_t max_held_body_bytes = std::size_t{512} << 20;
  std::size_t max_header_bytes = std::size_t{32} << 10;
  std::size_t max_header_fields = 100;
  std::size_t max_target_bytes = std::size_t{8} << 10;  // of the request line
  int max_connections = 4096;                           // further ones get 503
  int max_connections_per_address = 0;                  // further ones get 503; 0: no limit
  std::chrono::milliseconds idle_timeout{120'000};      // between two requests of a connection
  // for the TLS handshake; from a request's first byte to its header's end
  std::chrono::milliseconds header_timeout{20'000};
  std::chrono::milliseconds body_timeout{20'000};     // for a body, and ...
  std::int64_t min_body_bytes_per_second = 64 << 10;  // ... the time that its bytes take at this rate
  std::chrono::milliseconds write_timeout{30'000};    // without any progress, because the client does not read
  std::chrono::milliseconds linger_timeout{1'000};    // for the client to read the last response before the close
  std::vector<std::string> allowed_origins;           // of web pages that may read responses; "*": all (server/cors.h)
  std::chrono::milliseconds drain_timeout{30'000};    // for running requests at shutdown
  std::chrono::milliseconds cut_off_timeout{2'000};   // then, for handlers to tell their clients that they are cut off
  HttpHooks hooks;
};

}  // namespace loramux
