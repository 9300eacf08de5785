// Sends finished spans to an OTLP collector over HTTP, from a thread of its own. A request only adds its spans to a
// queue: a collector that is slow, or gone, costs spans and nothing else. Needs coroutines.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "server/tracing/span.h"

namespace loramux {

struct SpanExporterOptions {
  std::string endpoint;  // http(s)://HOST:PORT[/PREFIX]; /v1/traces is appended where the path does not end so
  std::vector<std::pair<std::string, std::string>> headers;  // headers of every export, such as a key of the collector
  SpanResource resource;
  double sample_share = 1;          // share of the requests that belong to no trace; 0 to 1
  std::size_t queue_spans = 16384;  // more are dropped
  std::size_t batch_spans = 512;
  std::chrono::milliseconds interval{1000};         // time until an incomplete batch is sent
  std::chrono::milliseconds timeout{5000};          // longest time of an export
  std::chrono::milliseconds longest_pause{30'000};  // between two tries, while the collector does not take spans
  std::chrono::milliseconds flush_limit{3000};      // time at the end until what is left is dropped
};

// Numbers of spans since the start.
struct SpanCounts {
  std::int64_t sent = 0;     // taken by the collector
  std::int64_t dropped = 0;  // the queue was full, or the end came
  std::int64_t refused = 0;  // by the collector
  std::int64_t waiting = 0;  // now, in the queue
};

// Thread-safe.
class SpanExporter {
 public:
  // Starts the thread; does not connect. Errors: an endpoint that is no URL. `clock` must outlive the exporter.
  static Result<std::unique_ptr<SpanExporter>> Start(SpanExporterOptions options, const Clock& clock);
  // Sends nothing, and has no thread.
  static std::unique_ptr<SpanExporter> None();
  // Sends what is left, within the flush limit.
  ~SpanExporter();
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  bool exports() const { return connection_ != nullptr; }
  // Queues the spans of one request, all of them or none. Never waits for the network. REQUIRES: exports().
  void Add(std::vector<Span> spans);
  SpanCounts counts() const;
  const SpanExporterOptions& options() const { return options_; }

 private:
  class Connection;
  SpanExporter(SpanExporterOptions options, std::unique_ptr<Connection> connection, const Clock& clock);
  void Run();
  std::vector<Span> TakeBatch();
  void Return(std::vector<Span> batch);
  bool SendBatch(std::vector<Span> batch);
  void Drop(std::size_t spans) { dropped_ += static_cast<std::int64_t>(spans); }

  const SpanExporterOptions options_;
  const Clock& clock_;
  std::unique_ptr<Connection> connection_;
  mutable std::mutex mutex_;
  std::condition_variable news_;
  std::deque<Span> queue_;
  bool stopping_ = false;
  TimeNs stop_by_ = 0;     // once stopping: when what is left is dropped
  bool reachable_ = true;  // as the last export found it; of the thread
  std::atomic<std::int64_t> sent_ = 0, dropped_ = 0, refused_ = 0;
  std::thread thread_;  // last
};

}  // namespace loramux
