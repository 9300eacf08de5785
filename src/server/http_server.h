// A small HTTP/1.1 server: listens, keeps connections, runs the route table's handlers, shuts down gracefully.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/result.h"
#include "server/http_options.h"

namespace loramux {

class RouteTable;

// Start, port and Shutdown are for one owning thread; handlers run on the server's own threads.
class HttpServer {
 public:
  // `routes` and `clock` must outlive the server.
  HttpServer(HttpServerOptions options, const RouteTable& routes, const Clock& clock);
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

  // Stops accepting, lets running requests end until the drain timeout, cuts off the rest, joins the threads.
  // Does nothing the second time.
  void Shutdown();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace loramux
