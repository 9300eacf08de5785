// Who a request is, in the log and across servers: its id (X-Request-Id) and its place in a distributed trace (W3C
// Trace Context: traceparent, tracestate).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace loramux {

// A value. `trace_id` and `span_id` are empty if the request belongs to no trace.
struct RequestTrace {
  std::string request_id;
  std::string trace_id;    // 32 hexadecimal digits, the caller's
  std::string span_id;     // 16, ours
  std::string tracestate;  // the caller's, as it came
  bool sampled = false;

  // What goes into every response: X-Request-Id, and traceparent and tracestate if there is a trace.
  std::vector<std::pair<std::string, std::string>> Headers() const;
};

// Thread-safe if it is called from several threads.
using RandomBits = std::function<std::uint64_t()>;

// A request whose headers are not known (yet): a new id, no trace.
RequestTrace NewTrace(const RandomBits& random_bits);

// Takes over what the client sent (empty: nothing). An id is taken if it has at most 128 of [A-Za-z0-9._-]; traceparent
// if it is well-formed by the W3C's rules (version 00, or a later one that begins like it), tracestate only with it and
// if it is well-formed too. Everything else is ignored.
void AdoptTrace(RequestTrace& trace, std::string_view request_id, std::string_view traceparent,
                std::string_view tracestate, const RandomBits& random_bits);

}  // namespace loramux
