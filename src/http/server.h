// A small HTTP/1.1 server: accepts connections, runs the handlers of the route table, shuts down gracefully.
#pragma once

#include <cstdint>
#include <memory>

#include <boost/asio/any_io_executor.hpp>

#include "base/clock.h"
#include "base/result.h"
#include "http/activity.h"
#include "http/options.h"

namespace loramux {

class RouteTable;
class TlsContext;

// One thread owns it and calls Start, port and Shutdown; handlers run on the server's own threads.
class HttpServer {
 public:
  // `routes`, `clock` and `tls` must outlive the server. `tls` null: plain HTTP.
  HttpServer(HttpServerOptions options, const RouteTable& routes, const Clock& clock, const TlsContext* tls = nullptr);
  // Calls Shutdown.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Binds, listens and starts the threads. Errors: a host that does not resolve, a port that is in use. REQUIRES: not
  // started yet.
  Status Start();
  // Returns the port in use. REQUIRES: started.
  std::uint16_t port() const;
  // Where connections and handlers run. What else runs there must have ended before Shutdown returns. With one thread
  // (HttpServerOptions::threads) all of it runs on that thread. The executor is valid as long as the server.
  boost::asio::any_io_executor executor() const;
  // Returns the number of open connections, refused ones included.
  int connections() const;

  // True once a shutdown has begun. Thread-safe.
  bool draining() const;

  // Stops accepting, answers new requests on open connections with 503, waits for running requests until the drain
  // timeout, cuts off the rest and joins the threads. Returns the outcome. A second call does nothing and returns the
  // same.
  DrainReport Shutdown();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace loramux
