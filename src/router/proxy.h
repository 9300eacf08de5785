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

// Use it on the thread of the pool's executor.
class Proxy {
 public:
  // `pool` and `metrics` must outlive the proxy. A server that sends nothing for `answer_timeout` is given up: while it
  // works on a prompt, and between two pieces.
  Proxy(ServerPool& pool, RouterMetrics& metrics, std::chrono::milliseconds answer_timeout)
      : pool_(pool), metrics_(metrics), answer_timeout_(answer_timeout), scans_(pool.clock(), {.threads = 1}) {}

  // Adds the routes of the OpenAI API, and of the other APIs that servers speak.
  void AddRoutes(RouteTable& routes);
  void SetCatalogue(Catalogue catalogue) { catalogue_ = std::move(catalogue); }

 private:
  friend class Forwarding;
  boost::asio::awaitable<void> Handle(HttpExchange& exchange);

  ServerPool& pool_;
  RouterMetrics& metrics_;
  const std::chrono::milliseconds answer_timeout_;
  Catalogue catalogue_;
  Admission admission_{QuotaTable(), /*max_queued=*/0};  // admits by API key alone
  AnswerLengths lengths_;
  FairWorkQueue scans_;  // reads long bodies, whose clients take turns
};

}  // namespace loramux
