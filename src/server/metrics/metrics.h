// The server's own metrics: histograms and counters of requests, with vLLM's names and buckets
// (docs/reference/metrics.md lists every series). The engine's metrics are read at each scrape (engine_metrics.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/generation.h"
#include "engine/snapshot.h"
#include "server/generation/generation_inbox.h"
#include "server/metrics/recent_ends.h"

namespace prometheus {
struct MetricFamily;
}

namespace loramux {

// Returns a snapshot of the engine (Engine::Snapshot). Callable on any thread; may block up to `patience`. A null
// result or an empty function: no engine to ask.
using SnapshotSource = std::function<std::shared_ptr<const EngineSnapshot>(std::chrono::milliseconds patience)>;

// Adapters with series of their own, if an operator sets no other number; the others are summed up.
inline constexpr int kTopAdapters = 50;

// Returns vLLM's name of a finish reason: stop, length, abort or error.
const char* FinishedReason(FinishReason reason);

// Thread-safe. Locks are held only for a few additions. Not called on the engine's thread.
class ServerMetrics {
 public:
  // `top_adapters`: adapters with series of their own; > 0. `model_name` is a label of the series. `max_model_len`
  // bounds the buckets of the histograms of lengths.
  ServerMetrics(int top_adapters, std::string model_name, std::int64_t max_model_len);
  ~ServerMetrics();
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  // Counts the prompt of a sequence; `cached_tokens` of its tokens came from the prefix cache.
  void CountPrompt(std::int32_t tokens, std::int32_t cached_tokens);
  // Counts a sequence's first token; `since_received` is the time since the HTTP request was received.
  void CountFirstToken(TimeNs since_received);
  // Counts a further token; `since_last` is the time since the token before.
  void CountToken(TimeNs since_last);
  // Counts a sequence that has ended.
  void CountEnd(const SequenceEnd& end);
  // Counts an HTTP response, when it begins.
  void CountResponse(int status);

  // Returns all families, for one scrape.
  std::vector<prometheus::MetricFamily> Collect() const;
  int top_adapters() const { return top_adapters_; }
  // What ended lately, for the page Live. Thread-safe; keeps nothing while it is not watched.
  RecentEnds& ends() { return ends_; }
  const std::string& model_name() const { return model_name_; }

 private:
  struct Impl;
  const int top_adapters_;
  const std::string model_name_;
  RecentEnds ends_;
  std::unique_ptr<Impl> impl_;
};

// Reports the events of one sequence to the metrics. A copyable value; not thread-safe.
class SequenceMetrics {
 public:
  SequenceMetrics() = default;  // reports nothing
  // `metrics` must outlive it.
  SequenceMetrics(ServerMetrics& metrics, std::string adapter, std::string tenant, TimeNs received);

  // Reports the next event of the sequence.
  void Take(const GenerationEvent& event);
  // Reports that the sequence has ended for the client. Only the first call counts. kCancelled: the client
  // disconnected.
  void End(FinishReason reason);
  // Why the sequence ended; kNone while it runs.
  FinishReason reason() const { return state_.reason; }
  // What is known of the sequence so far.
  const SequenceEnd& state() const { return state_; }

 private:
  ServerMetrics* metrics_ = nullptr;
  SequenceEnd state_;
};

}  // namespace loramux
