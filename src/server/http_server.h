// A small HTTP/1.1 server: listens, keeps connections, runs the route table's handlers, shuts down gracefully.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/result.h"
#include "server/http_activity.h"
#include "server/http_options.h"

namespace loramux {

class RouteTable;
class TlsContext;

// Start, port and Shutdown are for one owning thread; handlers run on the server's own threads.
class HttpServer {
 public:
  // `routes`, `clock` and `tls` (null: plain HTTP) must outlive the server.
  HttpServer(HttpServerOptions options, const RouteTable& routes, const Clock& clock, const TlsContext* tls = nullptr);
  // Shuts down.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Binds, listens and starts the threads. Errors: a host that does not resolve, a port that is taken.
  // REQUIRES: not started yet.
  Status Start();
  // The bound port. REQUIRES: started.
  std::uint16_t port() const;
  int connections() const;

  // A shutdown has begun. Thread-safe.
  bool draining() const;

  // Stops accepting, answers new requests of open connections with 503, lets running ones end until the drain timeout,
  // cuts off the rest, joins the threads. Says how it went; the second time it does nothing and says the same.
  DrainReport Shutdown();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace loramux
