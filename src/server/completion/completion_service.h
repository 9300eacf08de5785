// Completion requests as handlers of the HTTP server, whichever API they are in (dialect.h). Needs coroutines.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include "auth/fair_work_queue.h"
#include "http/exchange.h"
#include "server/completion/completion_job.h"
#include "server/completion/text_answers.h"
#include "server/tracing/span_exporter.h"

namespace loramux {

// Settings of an CompletionService.
struct CompletionServiceOptions {
  std::int64_t max_model_len = 0;  // tokens
  FairWorkOptions work;            // threads that parse, render, tokenize, detokenize and serialise
  // Bytes of the text of /tokenize; 0: kTokenizeBytesPerToken for each token of the model's length.
  std::size_t max_tokenize_bytes = 0;
  // Bytes of tokens that a slow client has not received yet, per request.
  std::size_t max_buffered_bytes = std::size_t{1} << 20;
  // A stream without output for this long sends a comment line, because proxies cut off idle streams. 0: never.
  std::chrono::milliseconds sse_keepalive{0};
  std::string tokenizer_info;     // the answer of /tokenizer_info; empty: there is none
  SpanExporter* spans = nullptr;  // takes the spans of requests; not null
};

// Thread-safe: one instance serves all connections.
class CompletionService {
 public:
  // `metrics` and what `context` points to must outlive the service; the service must outlive its HTTP server.
  CompletionService(const ServingContext& context, ServerMetrics& metrics, CompletionServiceOptions options);
  // Waits for the work on its threads.
  ~CompletionService();

  // Adds the probes, /version and /tokenizer_info.
  void AddProbes(RouteTable& routes);
  // Adds the route POST `path`, whose requests are in this dialect. `dialect` must outlive the service.
  void AddDialect(RouteTable& routes, std::string path, const Dialect& dialect);
  // Adds the route POST `path`, which answers about a text without the engine. Its errors have the dialect's form; its
  // body has at most so many characters for each of the text's bytes, and some more.
  void AddText(RouteTable& routes, std::string path, TextParser parse, const Dialect& dialect, std::size_t characters);

 private:
  boost::asio::awaitable<void> Complete(HttpExchange& exchange, const Dialect& dialect);
  boost::asio::awaitable<std::optional<Result<CompletionJob>>> Prepare(HttpExchange& exchange, const Dialect& dialect,
                                                                       TimeNs received);
  boost::asio::awaitable<void> Run(HttpExchange& exchange, CompletionJob job, TimeNs received);
  void Trace(const HttpExchange& exchange, TimeNs received, const CompletionJob* job) const;
  std::size_t MaxChatBytes() const;
  Result<ServingContext> ContextOf(HttpExchange& exchange, TimeNs received) const;
  HttpReply Health(const HttpRequest& request) const;
  HttpReply Ping() const;

  const ServingContext context_;
  ServerMetrics& metrics_;
  const CompletionServiceOptions options_;
  FairWorkQueue work_;
  FairWorkQueue compilers_;              // compile grammars, which takes longer than a turn of `work_`
  boost::asio::thread_pool finders_{4};  // threads that open adapters on the disk
};

}  // namespace loramux
