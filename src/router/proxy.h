// Passes a request on to one of the servers, and the answer back. Needs coroutines.
//
// At most one server executes a request: another one gets it only if it is certain that the first did not begin, that
// is, if there was no connection or the server said so (x-loramux-not-started: 1).
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include "http/exchange.h"
#include "router/answer_lengths.h"
#include "router/catalogue.h"
#include "router/router_metrics.h"
#include "router/server_pool.h"

namespace loramux {

struct ProxyOptions {
  // A server that sends nothing for so long is given up: while it works on a prompt, and between two pieces.
  std::chrono::milliseconds answer_timeout{600'000};
  bool trust_fairness_header = false;  // clients may name their tenants
};

// Use it on the thread of the pool's executor.
class Proxy {
 public:
  // All must outlive the proxy.
  Proxy(ServerPool& pool, RouterMetrics& metrics, boost::asio::thread_pool& workers, ProxyOptions options)
      : pool_(pool), metrics_(metrics), workers_(workers), options_(options) {}

  // Adds the routes of the OpenAI API, and of the other APIs that servers speak.
  void AddRoutes(RouteTable& routes);
  void SetCatalogue(Catalogue catalogue) { catalogue_ = std::move(catalogue); }

 private:
  friend class Forwarding;
  boost::asio::awaitable<void> Handle(HttpExchange& exchange);

  ServerPool& pool_;
  RouterMetrics& metrics_;
  boost::asio::thread_pool& workers_;
  const ProxyOptions options_;
  Catalogue catalogue_;
  AnswerLengths lengths_;
};

}  // namespace loramux
