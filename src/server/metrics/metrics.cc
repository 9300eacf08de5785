#include "server/metrics/metrics.h"

#include <algorithm>
#include <utility>

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "server/adapters/adapter_usage.h"

namespace loramux {
namespace {

using prometheus::Labels;
using Buckets = prometheus::Histogram::BucketBoundaries;

// vLLM's buckets (vllm/v1/metrics/loggers.py), so that dashboards and alerts for vLLM work.
const Buckets kFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                    1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
const Buckets kPerTokenSeconds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                  0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
const Buckets kRequestSeconds = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};

// Returns 1, 2, 5, 10, ... up to `max`.
Buckets LengthBuckets(std::int64_t max) {
  Buckets buckets;
  for (std::int64_t power = 1; power <= max; power *= 10) {
    for (const std::int64_t mantissa : {1, 2, 5}) {
      if (mantissa * power <= max) buckets.push_back(static_cast<double>(mantissa * power));
    }
  }
  return buckets;
}

double Seconds(TimeNs duration) { return static_cast<double>(std::max<TimeNs>(0, duration)) / kNsPerSecond; }

}  // namespace

const char* FinishedReason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
    case FinishReason::kAborted:
      return "abort";
    default:
      return "error";
  }
}

struct ServerMetrics::Impl {
  Impl(int top_adapters, const std::string& model_name, std::int64_t max_model_len)
      : labels{{"model_name", model_name}, {"engine", "0"}},
        usage(static_cast<std::size_t>(std::max(1, top_adapters))),
        first_token(AddHistogram("time_to_first_token_seconds",
                                 "Time to first token: from the receipt of the HTTP request.", kFirstTokenSeconds)),
        inter_token(
            AddHistogram("inter_token_latency_seconds", "Time between two tokens of a sequence.", kPerTokenSeconds)),
        per_output_token(AddHistogram("request_time_per_output_token_seconds",
                                      "Time per output token: mean over a sequence's tokens after the first.",
                                      kPerTokenSeconds)),
        e2e(AddHistogram("e2e_request_latency_seconds",
                         "Time from the receipt of the HTTP request to the end of a sequence.", kRequestSeconds)),
        queue(AddHistogram("request_queue_time_seconds",
                           "Time in the queue: from arrival at the engine to the first step.", kRequestSeconds)),
        prefill(AddHistogram("request_prefill_time_seconds", "Time from the first step to the first token.",
                             kRequestSeconds)),
        decode(AddHistogram("request_decode_time_seconds", "Time from the first token to the last.", kRequestSeconds)),
        inference(AddHistogram("request_inference_time_seconds", "Time from the first step to the last token.",
                               kRequestSeconds)),
        prompt_length(AddHistogram("request_prompt_tokens", "Prompt tokens of a finished sequence.",
                                   LengthBuckets(max_model_len))),
        generation_length(AddHistogram("request_generation_tokens", "Output tokens of a finished sequence.",
                                       LengthBuckets(max_model_len))),
        prompt_tokens(AddCounter("prompt_tokens_total", "Prompt tokens of sequences that reached their first token.")),
        generation_tokens(AddCounter("generation_tokens_total", "Output tokens.")),
        cached_tokens(AddCounter("prompt_tokens_cached_total", "Those of them that the prefix cache had.")),
        cache_queries(AddCounter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.")),
        cache_hits(AddCounter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.")),
        ended(prometheus::BuildCounter()
                  .Name("vllm:request_success_total")
                  .Help("Sequences that have ended, by finish reason.")
                  .Labels(labels)
                  .Register(registry)),
        responses(prometheus::BuildCounter()
                      .Name("loramux:http_responses_total")
                      .Help("HTTP responses, by status.")
                      .Register(registry)) {
    for (const char* reason : {"stop", "length", "abort", "error"}) ended.Add({{"finished_reason", reason}});
  }

  prometheus::Histogram& AddHistogram(const std::string& name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram()
        .Name("vllm:" + name)
        .Help(help)
        .Labels(labels)
        .Register(registry)
        .Add({}, buckets);
  }
  prometheus::Counter& AddCounter(const std::string& name, const char* help) {
    return prometheus::BuildCounter().Name("vllm:" + name).Help(help).Labels(labels).Register(registry).Add({});
  }

  const Labels labels;
  prometheus::Registry registry;
  AdapterUsage usage;
  prometheus::Histogram &first_token, &inter_token, &per_output_token, &e2e, &queue, &prefill, &decode, &inference;
  prometheus::Histogram &prompt_length, &generation_length;
  prometheus::Counter &prompt_tokens, &generation_tokens, &cached_tokens, &cache_queries, &cache_hits;
  prometheus::Family<prometheus::Counter>& ended;
  prometheus::Family<prometheus::Counter>& responses;
};

ServerMetrics::ServerMetrics(int top_adapters, std::string model_name, std::int64_t max_model_len)
    : top_adapters_(top_adapters),
      model_name_(std::move(model_name)),
      impl_(std::make_unique<Impl>(top_adapters_, model_name_, max_model_len)) {}

ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::CountPrompt(std::int32_t tokens, std::int32_t cached_tokens) {
  impl_->prompt_tokens.Increment(tokens);
  impl_->cached_tokens.Increment(cached_tokens);
  impl_->cache_queries.Increment(tokens);
  impl_->cache_hits.Increment(cached_tokens);
}

void ServerMetrics::CountFirstToken(TimeNs since_received) {
  impl_->generation_tokens.Increment();
  impl_->first_token.Observe(Seconds(since_received));
}

void ServerMetrics::CountToken(TimeNs since_last) {
  impl_->generation_tokens.Increment();
  impl_->inter_token.Observe(Seconds(since_last));
}

// Times and lengths are recorded only for sequences that ended by stop or length: the patience of a client that
// disconnects is not a latency of the server.
void ServerMetrics::CountEnd(const SequenceEnd& end) {
  Impl& m = *impl_;
  m.ended.Add({{"finished_reason", FinishedReason(end.reason)}}).Increment();
  m.usage.Add(end.adapter.empty() ? model_name_ : end.adapter, {1, end.prompt_tokens, end.generated_tokens}, end.now);
  ends_.Add(end);
  if (end.reason != FinishReason::kStop && end.reason != FinishReason::kLength) return;
  m.prompt_length.Observe(end.prompt_tokens);
  m.generation_length.Observe(end.generated_tokens);
  m.e2e.Observe(Seconds(end.now - end.received));
  m.queue.Observe(Seconds(end.first_scheduled - end.arrival));
  if (end.generated_tokens == 0) return;
  m.prefill.Observe(Seconds(end.first_token - end.first_scheduled));
  m.decode.Observe(Seconds(end.last_token - end.first_token));
  m.inference.Observe(Seconds(end.last_token - end.first_scheduled));
  if (end.generated_tokens == 1) return;
  m.per_output_token.Observe(Seconds(end.last_token - end.first_token) / (end.generated_tokens - 1));
}

void ServerMetrics::CountResponse(int status) { impl_->responses.Add({{"code", std::to_string(status)}}).Increment(); }

namespace {

using CountOf = std::int64_t AdapterCounts::*;

prometheus::MetricFamily UsageFamily(const char* name, const char* help, const std::vector<AdapterUsage::Series>& usage,
                                     CountOf count) {
  prometheus::MetricFamily family{name, help, prometheus::MetricType::Counter, {}};
  for (const AdapterUsage::Series& series : usage) {
    prometheus::ClientMetric metric;
    metric.label = {{"adapter_name", series.adapter}};
    metric.counter.value = static_cast<double>(series.counts.*count);
    family.metric.push_back(std::move(metric));
  }
  return family;
}

}  // namespace

std::vector<prometheus::MetricFamily> ServerMetrics::Collect() const {
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  const auto usage = impl_->usage.Collect();
  families.push_back(UsageFamily("loramux:adapter_requests_total", "Sequences that have ended, by adapter.", usage,
                                 &AdapterCounts::requests));
  families.push_back(UsageFamily("loramux:adapter_prompt_tokens_total", "Prompt tokens of these sequences, by adapter.",
                                 usage, &AdapterCounts::prompt_tokens));
  families.push_back(UsageFamily("loramux:adapter_generation_tokens_total",
                                 "Output tokens of these sequences, by adapter.", usage,
                                 &AdapterCounts::generation_tokens));
  return families;
}

// ---- One sequence ----

SequenceMetrics::SequenceMetrics(ServerMetrics& metrics, std::string adapter, std::string tenant, TimeNs received)
    : metrics_(&metrics) {
  state_.adapter = std::move(adapter);
  state_.tenant = std::move(tenant);
  state_.received = state_.now = received;
}

void SequenceMetrics::Take(const GenerationEvent& event) {
  if (metrics_ == nullptr || state_.reason != FinishReason::kNone) return;
  const bool computed = event.token || event.finish == FinishReason::kStop;
  if (computed && state_.prompt_tokens == 0) {
    state_.prompt_tokens = event.prompt_tokens;
    metrics_->CountPrompt(event.prompt_tokens, event.cached_prompt_tokens);
  }
  state_.arrival = event.arrival;
  state_.first_scheduled = event.first_scheduled;
  state_.adapter_wait = event.adapter_wait;
  state_.now = std::max(state_.now, event.now);
  if (!event.token) return;
  if (state_.generated_tokens++ == 0) {
    metrics_->CountFirstToken(event.now - state_.received);
    state_.first_token = event.now;
  } else {
    metrics_->CountToken(event.now - state_.last_token);
  }
  state_.last_token = event.now;
}

void SequenceMetrics::End(FinishReason reason) {
  if (state_.reason != FinishReason::kNone) return;
  state_.reason = reason;
  if (metrics_ != nullptr) metrics_->CountEnd(state_);
}

}  // namespace loramux
