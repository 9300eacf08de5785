// The OpenAI endpoints as handlers of the HTTP server. Needs coroutines.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include "http/exchange.h"
#include "http/fair_work_queue.h"
#include "server/openai/completion_job.h"
#include "server/openai/model_listing.h"
#include "server/openai/text_routes.h"
#include "server/tracing/span_exporter.h"

namespace loramux {

// Settings of an OpenAiService.
struct OpenAiServiceOptions {
  FairWorkOptions work;  // threads that parse, render, tokenize, detokenize and serialise
  // Of the text of /tokenize; 0: kTokenizeBytesPerToken for each token of the model's length.
  std::size_t max_tokenize_bytes = 0;
  // Of tokens that a slow client has not received yet, per request.
  std::size_t max_buffered_bytes = std::size_t{1} << 20;
  // A stream without output for this long sends a comment line, because proxies cut off idle streams. 0: never.
  std::chrono::milliseconds sse_keepalive{0};
  std::string tokenizer_info;     // the answer of /tokenizer_info; empty: there is none
  SpanExporter* spans = nullptr;  // takes the spans of requests; null: there are none
};

// Thread-safe: one instance serves all connections.
class OpenAiService {
 public:
  // What `context` points to must outlive the service; the service must outlive its HTTP server.
  OpenAiService(ServingContext context, ModelListing listing, OpenAiServiceOptions options);
  // Waits for the work on its threads.
  ~OpenAiService();

  // Adds all routes of the OpenAI API, the probes, /version, /tokenize and /detokenize.
  void AddRoutes(RouteTable& routes);
  // Adds the route POST `path`, whose requests are in this dialect. `dialect` must outlive the service.
  void AddDialect(RouteTable& routes, std::string path, const Dialect& dialect);
  // Adds the route POST `path`, which answers about a text without the engine; its errors have the dialect's form.
  void AddText(RouteTable& routes, std::string path, TextAnswer answer, const Dialect& dialect);

  // What the list of models says about all of them.
  const ModelListing& listing() const { return listing_; }

 private:
  boost::asio::awaitable<void> Complete(HttpExchange& exchange, const Dialect& dialect);
  boost::asio::awaitable<std::optional<Result<CompletionJob>>> Prepare(HttpExchange& exchange, const Dialect& dialect,
                                                                       TimeNs received);
  boost::asio::awaitable<void> Run(HttpExchange& exchange, CompletionJob job, TimeNs received);
  void Trace(const HttpExchange& exchange, TimeNs received, const CompletionJob* job) const;
  std::size_t MaxChatBytes() const;
  TextLimits LimitsOfText() const;
  ServingContext TextContext() const;
  HttpReply Health(const HttpRequest& request) const;
  HttpReply Ping() const;
  boost::asio::awaitable<void> Models(HttpExchange& exchange);
  boost::asio::awaitable<void> Model(HttpExchange& exchange);

  const ServingContext context_;  // without the finder, because that may block
  AdapterFinder* finder_;
  const ModelListing listing_;
  const OpenAiServiceOptions options_;
  FairWorkQueue work_;
  FairWorkQueue compilers_;              // of grammars, which takes longer than a turn of `work_`
  boost::asio::thread_pool finders_{4};  // threads that open adapters on the disk
  // a thread that lists adapters, so that listings do not wait while one is opened
  boost::asio::thread_pool listers_{1};
};

}  // namespace loramux
