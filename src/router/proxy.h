// Passes a request on to one of the servers, and the answer back. Needs coroutines.
//
// At most one server executes a request: another one gets it only if it is certain that the first did not begin, that
// is, if there was no connection or the server said so (x-loramux-not-started: 1).
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <boost/asio/awaitable.hpp>

#include "auth/admission.h"
#include "auth/fair_work_queue.h"
#include "http/exchange.h"
#include "router/answer_lengths.h"
#include "router/catalogue.h"
#include "router/router_metrics.h"
#include "router/server_pool.h"

namespace loramux {

struct ProxyOptions {
  // A server that sends nothing for so long is given up: while it works on a prompt, and between two pieces.
  std::chrono::milliseconds answer_timeout{600'000};
};

// Use it on the thread of the pool's executor.
class Proxy {
 public:
  // All must outlive the proxy.
  Proxy(ServerPool& pool, RouterMetrics& metrics, ProxyOptions options)
      : pool_(pool), metrics_(metrics), options_(options), scans_(pool.clock(), {.threads = 1}) {}

  // Adds the routes of the OpenAI API, and of the other APIs that servers speak.
  void AddRoutes(RouteTable& routes);
  void SetCatalogue(Catalogue catalogue) { catalogue_ = std::move(catalogue); }

 private:
  friend class Forwarding;
  boost::asio::awaitable<void> Handle(HttpExchange& exchange);

  ServerPool& pool_;
  RouterMetrics& metrics_;
  const ProxyOptions options_;
  Catalogue catalogue_;
  Admission admission_{{.max_queued = 0}, QuotaTable()};  // admits by API key alone
  AnswerLengths lengths_;
  FairWorkQueue scans_;  // reads long bodies, whose clients take turns
};

}  // namespace loramux
