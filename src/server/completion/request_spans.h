// The spans of one request: the request itself, and for each of its sequences the waits and the work.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "http/request_trace.h"
#include "server/metrics/metrics.h"
#include "server/tracing/span.h"

namespace loramux {

// Sequences of a request that have spans of their own; the spans of a request with more say that it had more.
inline constexpr std::size_t kMaxTracedSequences = 16;

// What is known of a request at its end.
struct RequestFacts {
  std::string method, path;
  std::string model;  // the name of the adapter or base model; empty: the request named none that is served
  std::string request_id;
  TimeNs received = 0, ended = 0;
  int status = 0;        // status of the response; 0: none was sent
  bool complete = true;  // the client got all of it
};

// Where the spans of a request belong. `sampled` false: it is to have none.
struct TracePlace {
  bool sampled = false;
  std::string trace_id, span_id, parent_id, tracestate;
};

// The caller's trace and its sampled flag, where there is one. Otherwise a trace of its own, for this share of the
// requests.
TracePlace PlaceInTrace(const RequestTrace& trace, std::string_view traceparent, double sample_share,
                        const RandomBits& random_bits);

// The span of the request, and as its children for each sequence, as far as it came: "queue" (from its arrival at the
// engine to its first step), "load" (the part of it in which its adapter was not on the device), "prefill" (to its
// first token) and "decode" (to its last one). REQUIRES: place.sampled.
std::vector<Span> SpansOf(const TracePlace& place, const RequestFacts& facts, std::span<const SequenceEnd> sequences,
                          const RandomBits& random_bits);

}  // namespace loramux
