// What the server counts: the requests' histograms and counters, by the names and buckets that vLLM gives them
// (docs/reference/metrics.md lists every series). What the engine counts is read from it at each scrape
// (engine_metrics.h).
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
#include "server/generation_inbox.h"

namespace prometheus {
struct MetricFamily;
}

namespace loramux {

// Engine::Snapshot. Any thread; may block up to the patience. Null, or an empty function: there is no engine to ask.
using SnapshotSource = std::function<std::shared_ptr<const EngineSnapshot>(std::chrono::milliseconds patience)>;

struct MetricsOptions {
  int top_adapters = 50;  // with series of their own; the rest is summed up. > 0
};

// One sequence that has ended. Times are 0 where something never happened.
struct SequenceEnd {
  FinishReason reason = FinishReason::kNone;  // kCancelled: the client went away
  std::string adapter;                        // empty: the base model
  std::int32_t prompt_tokens = 0, generated_tokens = 0;
  TimeNs received = 0;                      // the HTTP request was
  TimeNs arrival = 0, first_scheduled = 0;  // at the engine
  TimeNs first_token = 0, last_token = 0, now = 0;
};

// As vLLM calls it: stop, length, abort, error.
const char* FinishedReason(FinishReason reason);

// Thread-safe. Never called on the engine's thread: locks are held for a few additions.
class ServerMetrics {
 public:
  // `model_name` labels the series. Histograms of lengths have buckets up to `max_model_len`.
  ServerMetrics(MetricsOptions options, std::string model_name, std::int64_t max_model_len);
  ~ServerMetrics();
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  // A prompt was computed, so many of its tokens taken from the cache.
  void CountPrompt(std::int32_t tokens, std::int32_t cached_tokens);
  // The first token, since the HTTP request was received.
  void CountFirstToken(TimeNs since_received);
  // A further one, since the one before.
  void CountToken(TimeNs since_last);
  void CountEnd(const SequenceEnd& end);
  // An HTTP response began.
  void CountResponse(int status);

  std::vector<prometheus::MetricFamily> Collect() const;
  const MetricsOptions& options() const { return options_; }
  const std::string& model_name() const { return model_name_; }

 private:
  struct Impl;
  const MetricsOptions options_;
  const std::string model_name_;
  std::unique_ptr<Impl> impl_;
};

// What one sequence tells the metrics, event by event. A copyable value; not thread-safe.
class SequenceMetrics {
 public:
  SequenceMetrics() = default;  // tells nobody
  // `metrics` may be null.
  SequenceMetrics(ServerMetrics* metrics, std::string adapter, TimeNs received);

  void Take(const TokenEvent& event);
  // The sequence is over for the client; the first call counts. kCancelled: the client went away.
  void End(FinishReason reason);
  // How it ended; kNone: not yet.
  FinishReason reason() const { return state_.reason; }

 private:
  ServerMetrics* metrics_ = nullptr;
  SequenceEnd state_;
};

}  // namespace loramux
