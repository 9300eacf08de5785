// A span of a distributed trace, as OpenTelemetry has them, and its form for an OTLP collector.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"

namespace loramux {

// As OTLP numbers them.
enum class SpanKind { kInternal = 1, kServer = 2 };

using SpanValue = std::variant<std::string, std::int64_t, double>;

struct Span {
  std::string trace_id;    // 32 hexadecimal digits
  std::string span_id;     // 16 hexadecimal digits
  std::string parent_id;   // 16 hexadecimal digits; empty: the trace begins here
  std::string tracestate;  // tracestate of the caller; may be empty
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  TimeNs start = 0, end = 0;  // on the server's monotonic clock; end >= start
  std::vector<std::pair<std::string, SpanValue>> attributes;
  bool failed = false;
};

// What the spans are of.
struct SpanResource {
  std::string service_name = "loramux", service_version, instance;
};

// The body of a POST to /v1/traces: an ExportTraceServiceRequest in OTLP's JSON encoding. `unix_minus_clock` is added
// to every time and gives nanoseconds since 1970. Invalid UTF-8 is replaced.
std::string ExportBody(const SpanResource& resource, std::span<const Span> spans, std::int64_t unix_minus_clock);

// How many spans the collector says it refused, of the body of its answer (partialSuccess.rejectedSpans). 0: none, or
// the body is no such answer.
std::int64_t RejectedSpans(const std::string& body);

}  // namespace loramux
