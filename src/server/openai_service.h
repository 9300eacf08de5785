// The OpenAI endpoints as handlers of the HTTP server. Needs coroutines.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include "server/completion_job.h"
#include "server/http_exchange.h"
#include "server/model_listing.h"

namespace loramux {

struct OpenAiServiceOptions {
  int tokenizer_threads = 1;  // that parse, render and tokenize
  // of tokens that a slow client has not taken, a request
  std::size_t max_buffered_bytes = std::size_t{1} << 20;
  // A stream that has nothing to say for so long carries a comment line, for proxies that cut idle ones off. 0: never.
  std::chrono::milliseconds sse_keepalive{0};
  bool fairness_header = true;  // kFairnessHeader names the tenant
};

// Thread-safe: one instance serves all connections.
class OpenAiService {
 public:
  // What `context` points to must outlive the service, and the service its HTTP server.
  OpenAiService(ServingContext context, ModelListing listing, OpenAiServiceOptions options);
  ~OpenAiService();

  void AddRoutes(RouteTable& routes);

 private:
  boost::asio::awaitable<void> Complete(HttpExchange& exchange, Endpoint endpoint);
  boost::asio::awaitable<void> Run(HttpExchange& exchange, CompletionJob job);
  HttpReply Health(const HttpRequest& request) const;
  boost::asio::awaitable<void> Models(HttpExchange& exchange);
  boost::asio::awaitable<void> Model(HttpExchange& exchange);

  const ServingContext context_;  // without the finder, which may block
  AdapterFinder* finder_;
  const ModelListing listing_;
  const OpenAiServiceOptions options_;
  boost::asio::thread_pool tokenizers_;
  boost::asio::thread_pool finders_{4};  // that open adapters on the disk
  boost::asio::thread_pool listers_{1};  // that list them: probes do not wait for who opens one
};

}  // namespace loramux
