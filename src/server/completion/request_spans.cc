#include "server/completion/request_spans.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace loramux {
namespace {

std::string SpanId(const RandomBits& random_bits) {
  return fmt::format("{:016x}", std::max<std::uint64_t>(1, random_bits()));  // zero means no span
}

double SecondsOf(TimeNs time) { return static_cast<double>(time) / kNsPerSecond; }

// Adds the children of one sequence.
class SequenceSpans {
 public:
  SequenceSpans(const TracePlace& place, const RandomBits& random_bits, std::size_t choice, std::vector<Span>& spans)
      : place_(place), random_bits_(random_bits), choice_(choice), spans_(spans) {}

  void Add(const SequenceEnd& sequence) {
    if (sequence.arrival <= 0) return;  // the engine has never told anything of it
    const TimeNs end = std::max(sequence.now, sequence.arrival);
    const bool began = sequence.first_scheduled > 0;
    const TimeNs scheduled = began ? std::max(sequence.first_scheduled, sequence.arrival) : end;
    Span& queue = Child("queue", sequence.arrival, scheduled);
    queue.attributes.emplace_back("loramux.adapter", sequence.adapter);
    if (sequence.adapter_wait > 0) {
      Span& load = Child("load", sequence.arrival, std::min(scheduled, sequence.arrival + sequence.adapter_wait));
      load.attributes.emplace_back("loramux.adapter", sequence.adapter);
    }
    if (!began) return;
    const bool answered = sequence.first_token > 0;
    Span& prefill = Child("prefill", scheduled, answered ? sequence.first_token : end);
    prefill.attributes.emplace_back("gen_ai.usage.input_tokens", std::int64_t{sequence.prompt_tokens});
    if (!answered) return;
    Span& decode = Child("decode", sequence.first_token, sequence.last_token);
    decode.attributes.emplace_back("gen_ai.usage.output_tokens", std::int64_t{sequence.generated_tokens});
    decode.attributes.emplace_back("gen_ai.response.finish_reasons", std::string(FinishedReason(sequence.reason)));
  }

 private:
  Span& Child(const char* name, TimeNs start, TimeNs end) {
    Span span{.trace_id = place_.trace_id,
              .span_id = SpanId(random_bits_),
              .parent_id = place_.span_id,
              .name = name,
              .start = start,
              .end = std::max(start, end)};
    span.attributes.emplace_back("loramux.choice", static_cast<std::int64_t>(choice_));
    return spans_.emplace_back(std::move(span));
  }

  const TracePlace& place_;
  const RandomBits& random_bits_;
  const std::size_t choice_;
  std::vector<Span>& spans_;
};

Span RequestSpan(const TracePlace& place, const RequestFacts& facts, std::span<const SequenceEnd> sequences) {
  Span span{.trace_id = place.trace_id,
            .span_id = place.span_id,
            .parent_id = place.parent_id,
            .tracestate = place.tracestate,
            .name = facts.method + " " + facts.path,
            .kind = SpanKind::kServer,
            .start = facts.received,
            .end = std::max(facts.received, facts.ended)};
  std::int64_t prompt_tokens = 0, output_tokens = 0;
  TimeNs first_token = 0;
  for (const SequenceEnd& sequence : sequences) {
    prompt_tokens += sequence.prompt_tokens;
    output_tokens += sequence.generated_tokens;
    if (sequence.first_token > 0 && (first_token == 0 || sequence.first_token < first_token)) {
      first_token = sequence.first_token;
    }
  }
  span.attributes = {{"http.request.method", facts.method},
                     {"url.path", facts.path},
                     {"http.response.status_code", std::int64_t{facts.status}},
                     {"loramux.request_id", facts.request_id},
                     {"loramux.sequences", static_cast<std::int64_t>(sequences.size())},
                     {"gen_ai.usage.input_tokens", prompt_tokens},
                     {"gen_ai.usage.output_tokens", output_tokens}};
  if (!facts.model.empty()) span.attributes.emplace_back("gen_ai.request.model", facts.model);
  if (!sequences.empty()) span.attributes.emplace_back("loramux.adapter", sequences.front().adapter);
  if (first_token > 0) {
    span.attributes.emplace_back("gen_ai.server.time_to_first_token", SecondsOf(first_token - facts.received));
  }
  span.failed = facts.status >= 500 || !facts.complete;
  return span;
}

}  // namespace

TracePlace PlaceInTrace(const RequestTrace& trace, std::string_view traceparent, double sample_share,
                        const RandomBits& random_bits) {
  constexpr std::size_t kParentId = 36, kParentIdDigits = 16;  // places in VERSION-TRACE-PARENT-FLAGS
  TracePlace place;
  if (!trace.trace_id.empty()) {
    place = {trace.sampled, trace.trace_id, trace.span_id, {}, trace.tracestate};
    if (traceparent.size() >= kParentId + kParentIdDigits)
      place.parent_id = traceparent.substr(kParentId, kParentIdDigits);
    return place;
  }
  if (sample_share <= 0) return place;
  const std::uint64_t high = random_bits(), low = random_bits();
  constexpr double kAll = static_cast<double>(std::numeric_limits<std::uint64_t>::max());
  place.sampled = sample_share >= 1 || static_cast<double>(low) < sample_share * kAll;
  place.trace_id = fmt::format("{:016x}{:016x}", high, std::max<std::uint64_t>(1, low));
  place.span_id = SpanId(random_bits);
  return place;
}

std::vector<Span> SpansOf(const TracePlace& place, const RequestFacts& facts, std::span<const SequenceEnd> sequences,
                          const RandomBits& random_bits) {
  std::vector<Span> spans{RequestSpan(place, facts, sequences)};
  const std::size_t traced = std::min(sequences.size(), kMaxTracedSequences);
  for (std::size_t i = 0; i < traced; ++i) SequenceSpans(place, random_bits, i, spans).Add(sequences[i]);
  return spans;
}

}  // namespace loramux
